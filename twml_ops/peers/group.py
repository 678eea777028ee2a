"""The ranks that train together: collective calls with limits, and the ranks that remain."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from twml_ops._child import die_with_parent
from twml_ops.peers._mpi import mpi
from twml_ops.peers.watchdog import Watchdog, end_process

TIMEOUT = 60.0
RESULTS = "TWML_OPS_PEERS_RESULTS"
"""Environment variable: a folder in which each rank that ends as it should writes a file."""

REPLACEMENTS = "TWML_OPS_PEERS_REPLACEMENTS"
"""Environment variable: how many lost ranks a job may replace; none if it is not set."""

_LAUNCHED = "PMIX_RANK"  # an environment variable of processes that `mpirun` has started
_POLL = 0.0002  # seconds between two looks at a request
_PROGRESS = 0.001  # seconds between two calls of the thread that lets MPI progress


Item = TypeVar("Item")


class PeerFailure(Exception):
    """Another rank has failed. `PeerGroup.survive` makes a group of the ranks that remain."""


class Reconnectable(Protocol):
    """An object with windows of its own, such as a `Channel`.

    Attributes:
        is_closed: Whether this rank does not use it any more.
    """

    is_closed: bool

    def reconnect(self) -> None:
        """Makes new windows for the ranks that there are now. A collective call."""

    def share(self) -> None:
        """Gives ranks that have joined the values of the first rank. A collective call."""

    def end_epoch(self) -> None:
        """Waits at the end of an epoch, if its ranks wait for each other at all."""

    def pause(self) -> None:
        """Tells the other ranks not to wait for this one before its next message."""

    def finish(self) -> None:
        """Tells the other ranks that this one sends nothing more."""


class PeerGroup:
    """The ranks of a job, of which this process is one.

    A process that replaces a lost rank joins in the constructor; see `regroup`. It can make one
    group of all processes only.

    MPI is initialized for calls from several threads. The process must not fork afterwards: start
    data loaders and other child processes before, or by `spawn`.

    Args:
        timeout: Seconds that one call of MPI, or a wait for other ranks, may take. A process whose
            call takes longer ends with status 75.
        shared_memory: Whether ranks of one host may write into each other's memory. If not, or if
            ranks are on several hosts, writes travel by the network, and a thread calls MPI every
            millisecond, because Open MPI completes writes over TCP only while their target is in a
            call. None: unless the environment variable TWML_OPS_PEERS_SHARED_MEMORY is 0.
        comm: The communicator of mpi4py whose processes are the ranks; None: that of all.

    Attributes:
        rank: Number of this process among the ranks that remain.
        size: Number of the processes that remain.
        full_size: Number of the processes at the start.
        original_rank: The number that this process, or the one that it replaces, had at the start.
        members: The original ranks of the processes, in the order of their ranks. Those that have
            joined are last.
        timeout: Seconds that a call may take.
        epoch: How many epochs are complete, as the training says; 0 at the start. A process that
            joins begins with the number of the others.
        has_joined: Whether this process replaces one that was lost.
        shrinks: How often the group has lost ranks.
        joins: How many ranks have been replaced.

    Raises:
        ImportError: mpi4py or a library of MPI is not installed.
        ValueError: `timeout` is not positive.
    """

    _open: ClassVar[int] = 0  # the last group that is closed ends MPI

    def __init__(
        self, timeout: float = TIMEOUT, shared_memory: bool | None = None, comm: Any = None
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
        if _LAUNCHED in os.environ:
            die_with_parent()  # a rank that hangs does not notice the death of `mpirun`
        self._mpi = MPI = mpi()
        self.timeout, self.shrinks, self.joins, self.epoch = timeout, 0, 0, 0
        self._regroup_at: int | None = None
        self._must_regroup = False
        self._channels: list[Reconnectable] = []
        self._is_part = comm is not None
        if shared_memory is None:
            shared_memory = os.environ.get("TWML_OPS_PEERS_SHARED_MEMORY") != "0"
        parent = MPI.COMM_WORLD if comm is None else comm
        parent.Set_errhandler(MPI.ERRORS_RETURN)
        starters = MPI.COMM_NULL if comm is not None else MPI.Comm.Get_parent()
        self.has_joined = starters != MPI.COMM_NULL
        self.original_rank = int(parent.rank)
        name = "replacement" if self.has_joined else "rank"
        self.watchdog = Watchdog(f"{name} {self.original_rank}")
        if self.has_joined:
            self._join(starters)
        else:
            with self.watchdog.limit(timeout, "the start of the group"):
                self._adopt(parent.Dup())
                local = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
                self.shares_memory = shared_memory and local.size == self.size
                local.Free()
            self.members, self.full_size = tuple(range(self.size)), self.size
        self._stop = threading.Event()
        self._progress: threading.Thread | None = None
        if not self.shares_memory and self.size > 1:
            self._progress = threading.Thread(
                target=self._call_mpi, name="peers-progress", daemon=True
            )
            self._progress.start()
        PeerGroup._open += 1
        sys.excepthook = self._failing_hook(sys.excepthook)
        atexit.register(self.close)

    def _adopt(self, comm: Any) -> None:
        comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self.comm = comm
        self.rank, self.size = int(comm.rank), int(comm.size)

    @contextlib.contextmanager
    def call(self, name: str, leave: bool = True) -> Iterator[Any]:
        """Bounds the calls of MPI in a block.

        Args:
            name: The name of the block, for the message.
            leave: Whether the others can go on without this rank if the limit is reached; see
                `end_process`. A rank that waits for others cannot find out whether they are dead or
                slow.

        Yields:
            The module MPI.

        Raises:
            PeerFailure: Another rank has failed.
        """
        MPI = self._mpi
        try:
            with self.watchdog.limit(self.timeout, name, leave):
                yield MPI
        except MPI.Exception as e:
            if e.Get_error_class() not in self._failure_classes():
                raise
            raise PeerFailure(f"{name}: {e}") from e

    def _failure_classes(self) -> tuple[int, ...]:
        names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
        return tuple(getattr(self._mpi, name) for name in names if hasattr(self._mpi, name))

    def check(self) -> None:
        """Checks that all ranks of the group are alive, as far as this process knows.

        Raises:
            PeerFailure: Another rank has failed, or has found a failed one.
        """
        with self.call("the search for failed ranks") as MPI:
            # Open MPI learns of failures in calls that let messages progress.
            self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
            if self.comm.Is_revoked():
                raise PeerFailure("another rank has found a failed rank")
            failed = self.comm.Get_failed()
            count = failed.size
            failed.Free()
        if count:
            raise PeerFailure(f"{count} ranks have failed")

    def check_rank(self, rank: int) -> None:
        """Checks a rank for which this one waits outside of MPI, such as for a file that it writes.

        The failure of another one is no error: `rank`, which is outside of MPI as well, would not
        come to `survive`. The next call of MPI finds it.

        Args:
            rank: The rank.

        Raises:
            PeerFailure: It has failed, or another rank is in `survive`.
        """
        with self.call("the search for a failed rank") as MPI:
            self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
            if self.comm.Is_revoked():
                raise PeerFailure("another rank has found a failed rank")
            failed, group = self.comm.Get_failed(), self.comm.Get_group()
            ranks = MPI.Group.Translate_ranks(failed, list(range(failed.size)), group)
            failed.Free()
            group.Free()
        if rank in ranks:
            raise PeerFailure(f"the rank {rank} has failed")

    def wait(self, request: Any, name: str) -> None:
        """Waits for a request of MPI without occupying the processor.

        Args:
            request: Of a collective call.
            name: The name of the call, for the message.

        Raises:
            PeerFailure: Another rank has failed.
        """
        with self.call(name, leave=False):
            pause = 0.0
            while not request.Test():
                time.sleep(pause)  # 0 yields the processor
                pause = min(pause + _POLL / 20, _POLL)

    def wait_until(self, condition: Callable[[], bool], name: str) -> None:
        """Waits until a condition on received data holds.

        Args:
            condition: Called again and again.
            name: What is awaited, for the message.

        Raises:
            PeerFailure: Another rank has failed.
        """
        with self.watchdog.limit(self.timeout, name, leave=False):
            turn = 0
            while not condition():
                turn += 1
                if turn % 16 == 0:
                    self.check()
                time.sleep(_POLL)

    def all_sum(self, numbers: Any, name: str = "a sum over the ranks") -> np.ndarray:
        """The sums of integers over all ranks. A collective call.

        Args:
            numbers: int64 [K] of this rank.
            name: The name of the call, for the message.

        Returns:
            int64 [K].

        Raises:
            PeerFailure: Another rank has failed.
        """
        mine = np.array(numbers, np.int64)
        sums = np.empty_like(mine)
        with self.call(name):
            request = self.comm.Iallreduce(mine, sums)
        self.wait(request, name)
        return sums

    def gather_all(self, numbers: Any, name: str = "numbers of all ranks") -> np.ndarray:
        """Integers of all ranks. A collective call.

        Args:
            numbers: int64 [K] of this rank.
            name: The name of the call, for the message.

        Returns:
            int64 [size, K].

        Raises:
            PeerFailure: Another rank has failed.
        """
        mine = np.array(numbers, np.int64)
        found = np.empty((self.size, mine.size), np.int64)
        with self.call(name):
            request = self.comm.Iallgather(mine, found)
        self.wait(request, name)
        return found

    def broadcast(self, array: np.ndarray, name: str = "the initial values", root: int = 0) -> None:
        """Overwrites an array with that of one rank. A collective call.

        Args:
            array: Contiguous; the same shape and type on all ranks.
            name: The name of the call, for the message.
            root: The rank whose values all get.

        Raises:
            PeerFailure: Another rank has failed.
        """
        flat = array.reshape(-1).view(np.uint8)
        piece = 1 << 26
        for begin in range(0, flat.size, piece):
            with self.call(name):
                request = self.comm.Ibcast([flat[begin : begin + piece], self._mpi.BYTE], root)
            self.wait(request, name)

    def fail(self, reason: str) -> None:
        """Ends this rank because it has found a fault of its own. The others go on without it.

        Args:
            reason: What is wrong.

        Raises:
            FloatingPointError: There are no others.
        """
        if self.size == 1:
            raise FloatingPointError(reason)
        end_process(f"[rank {self.original_rank}] {reason}", leave=True)

    def leave(self, reason: str) -> None:
        """Ends this rank because of an error. Other ranks go on without it.

        `run_job` does not start a job again all of whose ranks ended in this way.

        Args:
            reason: What is wrong.
        """
        folder = os.environ.get(RESULTS)
        if folder is not None:
            (Path(folder) / f"error-{self.original_rank}").touch()
        end_process(f"[rank {self.original_rank}] {reason}", leave=True)

    def survive(self, failure: PeerFailure | None = None) -> tuple[int, ...]:
        """Goes on after a `PeerFailure`. A collective call of the ranks that remain.

        These agree on who remains, and on the epoch after which they `regroup`. All channels get
        new windows. The first of them prints which ranks were lost.

        Args:
            failure: Where the loss was noticed, which is printed as well.

        Returns:
            The original numbers of the ranks that were lost.
        """
        before = self.members
        while True:
            self._shrink()
            try:
                for channel in self._channels:
                    channel.reconnect()
                # The first end of an epoch that all of them still have to come to, or wait at.
                mine = self.epoch + (not self._must_regroup)
                epochs = self.gather_all([mine], "the epochs of all ranks")
            except PeerFailure:
                continue
            self._regroup_at = int(epochs.max())
            lost = [m for m in before if m not in self.members]
            if lost and self.rank == 0:
                where = "" if failure is None else f": {failure}"
                print(f"ranks {lost} were lost, {self.size} go on{where}", flush=True)
            return tuple(lost)

    def deal(self, items: Sequence[Item]) -> Iterator[Item]:
        """This rank's share of what all ranks train on in an epoch.

        Without failures it is `items[rank::size]`. When ranks are lost, those that remain take over
        what was not yet dealt to them. What a lost rank did after its last exchange is lost, and
        ranks that do not wait for each other may repeat or skip a few items.

        Args:
            items: Such as the shuffled numbers of the examples; the same on all ranks.

        Yields:
            The items, in their order.
        """
        begin = 0
        while begin + self.rank < len(items):
            mine, begin = begin + self.rank, begin + self.size
            yield items[mine]

    def complete_epoch(self, number: int, of: int) -> bool:
        """Says how far the training is.

        Args:
            number: How many epochs are complete.
            of: How many there will be.

        Returns:
            Whether ranks were lost, so that all ranks have to call `regroup` now. It is the same on
            all ranks, and false after the last epoch.
        """
        self.epoch = number
        self._must_regroup = number == self._regroup_at and number < of
        return self._must_regroup

    def end_epoch(self, number: int, of: int) -> None:
        """Ends an epoch of a training loop, and replaces lost ranks.

        If there are channels of the consistency "bsp", it is a collective call, which joins the
        rounds of ranks that have more of them in this epoch.

        Args:
            number: How many epochs are complete.
            of: How many there will be. After the last one, ranks are not replaced.
        """
        for channel in tuple(self._channels):
            while True:
                try:
                    channel.end_epoch()
                    break
                except PeerFailure as failure:
                    self.survive(failure)
        if self.complete_epoch(number, of):
            self.regroup()

    def regroup(self) -> tuple[int, ...]:
        """Replaces the ranks that were lost. A collective call, after `complete_epoch`.

        For each of them MPI starts the program of this process again, as often as the environment
        variable TWML_OPS_PEERS_REPLACEMENTS allows in the whole job. The others wait until the new
        processes have made the same `PeerGroup`, channels and vectors. Channels that are closed are
        left out.

        Returns:
            The original ranks that have joined.
        """
        while True:
            try:
                for channel in (each for each in self._channels if not each.is_closed):
                    channel.pause()  # some ranks may have more messages in this epoch
                self.all_sum([0], "the wait for all ranks at the end of an epoch")
                break
            except PeerFailure as failure:
                self.survive(failure)
        self._channels = [each for each in self._channels if not each.is_closed]
        self._regroup_at, self._must_regroup = None, False
        lost = tuple(sorted(set(range(self.full_size)) - set(self.members)))
        allowed = int(os.environ.get(REPLACEMENTS, "0")) - self.joins
        if not lost or self._is_part or len(lost) > allowed:
            return ()
        try:
            self._start(lost)
            for channel in self._channels:
                channel.reconnect()
                channel.share()
        except PeerFailure as failure:
            self.survive(failure)
        except self._mpi.Exception as e:  # all ranks get this error
            print(f"[rank {self.original_rank}] lost ranks were not replaced: {e}", flush=True)
        return tuple(m for m in lost if m in self.members)

    def _start(self, lost: tuple[int, ...]) -> None:
        """Starts a process for each of some lost ranks, all of which call `_join`."""
        MPI = self._mpi
        # mpirun ends processes that were started together when one of them dies.
        while lost:
            info = MPI.Info.Create()
            info.Set("wdir", os.getcwd())
            # A process that ends before it has joined cannot be told from a slow one.
            with self.call("the start of a process that replaces a rank", leave=False):
                starters = self.comm.Spawn(sys.executable, sys.orig_argv[1:], 1, info, 0)
                self._adopt(starters.Merge(False))
            self.members += lost[:1]
            self.joins += 1
            lost = lost[1:]
            state = [self.full_size, self.epoch, self.joins, self.shares_memory, len(lost)]
            self.broadcast(np.array(state, np.int64), "the state of the group")
            self.broadcast(np.array([*self.members, *lost], np.int64), "the ranks of the group")

    def _join(self, starters: Any) -> None:
        """Joins the ranks that have started this process, and starts the ranks that are to
        follow.
        """
        if PeerGroup._open:
            raise RuntimeError("a process that replaces a rank can make one group only")
        try:
            with self.call("joining the other ranks"):
                self._adopt(starters.Merge(True))
            state = np.empty(5, np.int64)
            self.broadcast(state, "the state of the group")
            self.full_size, self.epoch, self.joins, shares_memory, count = (int(n) for n in state)
            self.shares_memory = bool(shares_memory)
            members = np.empty(self.size + count, np.int64)
            self.broadcast(members, "the ranks of the group")
            self.members = tuple(int(m) for m in members[: self.size])
            self.original_rank = self.members[self.rank]
            self._start(tuple(int(m) for m in members[self.size :]))
        except PeerFailure as e:
            end_process(f"[{self.original_rank}] {e}", leave=True)

    def add(self, channel: Reconnectable) -> None:
        """Registers a channel, which gets new windows in `survive`.

        Args:
            channel: Made by all ranks in the same order.
        """
        self._channels.append(channel)

    def _shrink(self) -> None:
        with self.watchdog.limit(self.timeout, "the agreement on the ranks that remain", False):
            while True:
                # Ranks that wait for this one in a collective call must fail as well.
                if not self.comm.Is_revoked():
                    self.comm.Revoke()
                smaller = self.comm.Shrink()
                smaller.Set_errhandler(self._mpi.ERRORS_RETURN)
                mine = np.array([self.original_rank], np.int64)
                members = np.empty(smaller.size, np.int64)
                try:
                    smaller.Allgather(mine, members)
                    agreed = True
                except self._mpi.Exception:
                    agreed = False
                # Agree returns the same on all ranks, so that all or none of them go on.
                try:
                    agreed = bool(smaller.Agree(int(agreed)))
                except self._mpi.Exception:
                    agreed = False
                self._adopt(smaller)  # the old communicator is never freed
                if agreed:
                    break
        self.members = tuple(int(m) for m in members)
        self.shrinks += 1

    def _call_mpi(self) -> None:
        while not self._stop.wait(_PROGRESS):
            # A failed rank must not end the thread.
            with contextlib.suppress(self._mpi.Exception):
                self.comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)

    def _failing_hook(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Lets an exception that is not caught end the process so that the others notice."""

        def report(*error: Any) -> None:
            hook(*error)
            if self.size > 1 and not self._mpi.Is_finalized():
                self.leave(error[0].__name__)

        return report

    def close(self) -> None:
        """Ends MPI in this process. A collective call; the end of the process makes it, too.

        Channels whose `finish` was not called are finished before. After the call the process may
        take any time and may fork. Ranks must come to it within `timeout` of each other.
        """
        atexit.unregister(self.close)
        if self._stop.is_set():
            return
        if self._mpi.Is_finalized():
            self._stop.set()
            return
        while True:
            try:
                for channel in self._channels:
                    channel.finish()
                self.all_sum([0], "the wait for all ranks to end")
                break
            except PeerFailure as failure:
                self.survive(failure)
        self._stop.set()
        if self._progress is not None:
            self._progress.join()
        folder = os.environ.get(RESULTS)
        if folder is not None:
            names = ("members", "shrinks", "joins")
            result = {name: getattr(self, name) for name in names}
            (Path(folder) / f"rank-{self.original_rank}.json").write_text(json.dumps(result))
        PeerGroup._open -= 1
        if self._is_part or PeerGroup._open:
            return
        if self.shrinks or self.joins:
            return  # Open MPI may wait for the dead. The process ends without `MPI_Finalize`.
        # `MPI_Finalize` holds Python's lock, so that only the system can end it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(self.timeout))
        self._mpi.Finalize()
        signal.alarm(0)
