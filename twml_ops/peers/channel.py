"""Messages between the ranks of a group: one receive slot for each sender, written by `MPI_Put`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from twml_ops.peers.dataflow import Dataflow, receivers, senders, without
from twml_ops.peers.group import PeerGroup
from twml_ops.peers.messages import HEADER, HEADER_BYTES

Consistency = Literal["bsp", "async", "ssp"]
_ATTEMPTS = 8  # how often a gather reads a slot that is being written


@dataclasses.dataclass
class Counts:
    """Counts of the messages of a channel.

    Attributes:
        scatters: Messages that this rank has sent, each to all of its receivers.
        sent_bytes: Bytes of the data of these messages, counted once for each receiver.
        gathered: Messages that gathers have returned.
        overwritten: Messages that a newer one of the same sender replaced before a gather.
        missed: How often a gather found no new message of a sender.
        torn: How often a gather skipped a slot that was being written.
        waits: How often bounded staleness (SSP) made this rank wait.
        shrinks: How often ranks were lost, after which the others went on.
        joins: How often other ranks have joined.
    """

    scatters: int = 0
    sent_bytes: int = 0
    gathered: int = 0
    overwritten: int = 0
    missed: int = 0
    torn: int = 0
    waits: int = 0
    shrinks: int = 0
    joins: int = 0


@dataclasses.dataclass(frozen=True)
class Message:
    """A message of another rank.

    Attributes:
        sender: Rank of the sender.
        iteration: Number of the message, from 1.
        progress: What the sender said of its progress.
        data: uint8, which belongs to the caller.
    """

    sender: int
    iteration: int
    progress: int
    data: np.ndarray


class Channel:
    """Sends messages of limited size to the receivers of a dataflow graph.

    Making a channel is a collective call: all ranks of the group make the same channels in the same
    order.

    Args:
        group: The ranks.
        dataflow: The graph; see `receivers`.
        capacity: Largest size of the data of a message in bytes.
        consistency: What `barrier` waits for. "bsp" (bulk synchronous): until all ranks have
            scattered; the next `scatter` also waits until all of them have gathered. "async":
            nothing. "ssp" (stale synchronous, Ho et al., NIPS 2013): until this rank is at most
            `staleness` scatters ahead of what has arrived from each sender.
        staleness: See "ssp".
        on_join: See the attribute.

    Attributes:
        counts: What the channel has done.
        is_closed: Set it when this rank does not use the channel any more.
        on_join: Called when ranks have joined, by all that were there before; None: nothing. It may
            make collective calls.

    Raises:
        ValueError: An argument is out of its range.
        PeerFailure: Another rank has failed.
    """

    def __init__(
        self,
        group: PeerGroup,
        dataflow: Dataflow = "all",
        capacity: int = 0,
        consistency: Consistency = "bsp",
        staleness: int = 4,
        on_join: Callable[[], None] | None = None,
    ) -> None:
        if consistency not in get_args(Consistency):
            raise ValueError(
                f"consistency must be one of {get_args(Consistency)}, got {consistency!r}"
            )
        if staleness < 0:
            raise ValueError(f"staleness must be at least 0, got {staleness}")
        self.group, self.counts = group, Counts()
        self.consistency, self.staleness = consistency, staleness
        self.capacity = -(-capacity // HEADER_BYTES) * HEADER_BYTES
        self.is_closed, self.on_join = False, on_join
        self._dataflow = dataflow if isinstance(dataflow, str) else receivers(dataflow, group.size)
        self._slot_bytes = self.capacity + 2 * HEADER_BYTES
        self._iteration, self._size, self._progress = 0, 0, 0  # of the last message
        self._gathered: Any = None  # the request of the barrier after a gather
        self._old_windows: list[Any] = []  # they are never freed: a dead rank may still be writing
        self._is_finished = False
        self._connect()
        group.add(self)

    def _connect(self) -> None:
        """Makes the window of the current ranks. A collective call."""
        # Messages in old windows are lost. Those that come have larger numbers.
        numbers = self.group.gather_all([self._iteration], "the numbers of the last messages")
        self._iteration = int(numbers.max())
        rank, graph = self.group.rank, self._graph()
        self._members, incoming = self.group.members, senders(graph)
        self.senders, self.receivers = incoming[rank], tuple(graph[rank])
        self._places = [incoming[to].index(rank) * self._slot_bytes for to in self.receivers]
        self._last = dict.fromkeys(self.senders, self._iteration)
        size = max(1, len(self.senders)) * self._slot_bytes
        with self.group.call("making a window") as MPI:
            if self.group.shares_memory:
                self._window = MPI.Win.Allocate(size, 1, comm=self.group.comm)
                self._slots = np.frombuffer(self._window.tomemory(), np.uint8)
            else:
                self._slots = np.zeros(size, np.uint8)
                self._window = MPI.Win.Create(self._slots, 1, comm=self.group.comm)
            self._window.Set_errhandler(MPI.ERRORS_RETURN)
            for i in range(len(self.senders)):
                for at in (0, HEADER_BYTES + self.capacity):
                    begin = i * self._slot_bytes + at
                    self._slots[begin : begin + HEADER_BYTES] = 0
            self._window.Lock_all()
        # A rank may write only after all ranks have emptied their slots.
        self.group.all_sum([0], "making a window")

    def _graph(self) -> Sequence[Sequence[int]]:
        """The graph of the current ranks."""
        group = self.group
        if isinstance(self._dataflow, str):
            return receivers(self._dataflow, group.size)
        order = sorted(group.members)
        lost = sorted(set(range(group.full_size)) - set(order))
        rows = without(self._dataflow, lost)
        of = [order.index(m) for m in group.members]  # rank -> row
        return tuple(tuple(sorted(of.index(to) for to in rows[row])) for row in of)

    @property
    def iteration(self) -> int:
        """The number of the last message of this rank."""
        return self._iteration

    def scatter(self, data: Sequence[np.ndarray], progress: int = 0) -> None:
        """Writes a message into the slots of all receivers.

        Args:
            data: Contiguous uint8 arrays, which follow one another in the message.
            progress: Any integer that says how far this rank is; see `Message`.

        Raises:
            ValueError: The message is larger than `capacity`.
            PeerFailure: Another rank has failed.
        """
        size = sum(part.size for part in data)
        if size > self.capacity:
            raise ValueError(f"a message must have at most {self.capacity} bytes, got {size}")
        self.group.check()
        self._wait_for_gathers()
        self._iteration += 1
        self._size, self._progress = size, progress
        header = self._header()
        self._put(header, 0)
        offset = HEADER_BYTES
        with self.group.call("sending a message") as MPI:
            for part in data:
                for to, place in zip(self.receivers, self._places, strict=True):
                    if part.size:
                        self._window.Put(
                            [part, MPI.BYTE], to, (place + offset, part.size, MPI.BYTE)
                        )
                offset += part.size
            self._window.Flush_all()
        self._put(header, HEADER_BYTES + self.capacity)
        self.counts.scatters += 1
        self.counts.sent_bytes += size * len(self.receivers)

    def barrier(self) -> None:
        """Waits as `consistency` says, between `scatter` and `gather`.

        Raises:
            PeerFailure: Another rank has failed.
        """
        if self.consistency == "bsp":
            self.join_round(finished=False)
        elif self.consistency == "ssp" and not self._is_fresh():
            self.counts.waits += 1
            self.group.wait_until(self._is_fresh, "the wait for updates that are not too old")

    def join_round(self, finished: bool) -> bool:
        """Takes part in a round of "bsp".

        Args:
            finished: Whether this rank has no more data.

        Returns:
            Whether all ranks have finished.

        Raises:
            PeerFailure: Another rank has failed.
        """
        self._wait_for_gathers()
        busy = self.group.all_sum([not finished], "the barrier after a scatter")
        return int(busy[0]) == 0

    def _wait_for_gathers(self) -> None:
        if self._gathered is not None:
            self.group.wait(self._gathered, "the wait for all ranks to gather")
            self._gathered = None

    def gather(self) -> list[Message]:
        """Copies the new messages of all senders, in ascending order of the sender.

        Returns:
            The messages that no gather has returned.

        Raises:
            PeerFailure: Another rank has failed.
        """
        found = []
        for i, sender in enumerate(self.senders):
            message = self._read(i, sender)
            if message is not None:
                found.append(message)
            elif not self._newest(i)["finished"]:
                self.counts.missed += 1
        self.counts.gathered += len(found)
        if self.consistency == "bsp":
            with self.group.call("the barrier after a gather"):
                self._gathered = self.group.comm.Ibarrier()
        return found

    def finish(self) -> None:
        """Tells the other ranks that this one sends nothing more.

        With "bsp" it is a collective call, which joins the rounds of ranks that have more of them.
        Otherwise the receivers do not wait for this rank any more.

        Raises:
            PeerFailure: Another rank has failed.
        """
        if self._is_finished:
            return
        if self.consistency == "bsp":
            while not self.join_round(finished=True):
                self.gather()
        else:
            self._mark_finished()
        self._is_finished = True

    def pause(self) -> None:
        """Tells the other ranks not to wait for this one before its next message.

        With "bsp" it does nothing.

        Raises:
            PeerFailure: Another rank has failed.
        """
        if self.consistency != "bsp":
            self._mark_finished()

    def _mark_finished(self) -> None:
        header = self._header(finished=True)
        self._put(header, 0)
        self._put(header, HEADER_BYTES + self.capacity)

    def reconnect(self) -> None:
        """Goes on with the ranks that there are now, for `PeerGroup`. A collective call.

        Named graphs are made again for the new number of ranks. In other graphs the senders of a
        lost rank send to its receivers.

        Raises:
            PeerFailure: Another rank has failed.
        """
        self._gathered = None
        before = self._members
        self._old_windows.append((self._window, self._slots))
        self._connect()
        if set(before) <= set(self.group.members):
            self.counts.joins += 1
        else:
            self.counts.shrinks += 1
        if self._is_finished and self.consistency != "bsp":
            self._mark_finished()
        self._is_finished &= self.consistency != "bsp"

    def share(self) -> None:
        """See `on_join`. A collective call.

        Raises:
            PeerFailure: Another rank has failed.
        """
        if self.on_join is not None:
            self.on_join()

    def end_epoch(self) -> None:
        """With "bsp" joins the rounds of ranks that have more of them. Messages in it are lost.

        Raises:
            PeerFailure: Another rank has failed.
        """
        while self.consistency == "bsp" and not self.join_round(finished=True):
            self.gather()

    def arrived(self) -> dict[int, int]:
        """The numbers of the newest complete messages of the senders.

        Returns:
            Sender -> number, 0 if none has arrived.
        """
        return {
            sender: max(self._last[sender], int(self._newest(i)["iteration"]))
            for i, sender in enumerate(self.senders)
        }

    def _is_fresh(self) -> bool:
        limit = self._iteration - self.staleness
        for i, sender in enumerate(self.senders):
            newest = self._newest(i)
            is_old = max(self._last[sender], int(newest["iteration"])) < limit
            if is_old and not newest["finished"]:
                return False
        return True

    def _header(self, finished: bool = False) -> np.ndarray:
        """The header of the last message, with the mark `finished` if this rank sends no more."""
        header = np.zeros(1, HEADER)
        header[0] = self._iteration, self._size, self._progress, finished, 0
        return header.view(np.uint8)

    def _put(self, header: np.ndarray, offset: int) -> None:
        with self.group.call("sending a header") as MPI:
            for to, place in zip(self.receivers, self._places, strict=True):
                self._window.Put([header, MPI.BYTE], to, (place + offset, HEADER_BYTES, MPI.BYTE))
            self._window.Flush_all()

    def _at(self, slot: int, offset: int, size: int) -> np.ndarray:
        begin = slot * self._slot_bytes + offset
        self._window.Sync()  # a memory barrier
        return self._slots[begin : begin + size].copy()

    def _newest(self, slot: int) -> Any:
        """The trailer of a slot, which names the last complete message."""
        return self._at(slot, HEADER_BYTES + self.capacity, HEADER_BYTES).view(HEADER)[0]

    def _read(self, slot: int, sender: int) -> Message | None:
        for _ in range(_ATTEMPTS):
            trailer = self._newest(slot)
            iteration, size = int(trailer["iteration"]), int(trailer["size"])
            if iteration <= self._last[sender]:
                return None
            # A torn trailer may name any size, and a torn header or trailer any progress.
            data = self._at(slot, HEADER_BYTES, min(max(size, 0), self.capacity))
            header = self._at(slot, 0, HEADER_BYTES).view(HEADER)[0]
            same = all(header[name] == trailer[name] for name in ("iteration", "size", "progress"))
            if same and 0 <= size <= self.capacity:
                self.counts.overwritten += iteration - self._last[sender] - 1
                self._last[sender] = iteration
                return Message(sender, iteration, int(trailer["progress"]), data)
            self.counts.torn += 1
        return None
