"""A vector of which every rank has a copy, and that ranks exchange by one-sided writes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from twml_ops.peers.channel import Channel, Consistency, Counts, Message
from twml_ops.peers.dataflow import Dataflow
from twml_ops.peers.group import PeerFailure, PeerGroup
from twml_ops.peers.messages import Part, decode, dtype_of, encode
from twml_ops.peers.reduce import Reduce, Update, check_reduce, reduce_dense, reduce_rows


class SharedVector:
    """A vector, matrix or table of this rank, and a receive slot for each rank that sends its own.

    `scatter` writes the value into the memory of the receivers, which take no part in it. `gather`
    merges what has arrived. See Li et al., "MALT", EuroSys 2015. Every rank makes the same vectors
    in the same order.

    Example (a rank of `mpirun`):

        group = peers.PeerGroup()
        weights = peers.SharedVector.create([features], "float32", "all", group=group)
        for epoch in range(group.epoch, epochs):
            for number, (x, y) in enumerate(batches_of(epoch, group.rank, group.size)):
                weights.value -= learning_rate * gradient(weights.value, x, y)
                if number % 10 == 9:
                    weights.exchange()
            group.end_epoch(epoch + 1, epochs)

    Args:
        value: NumPy array; use `create`, which makes all of these.
        part: How the value travels in messages.
        channel: The channel that carries the messages.
        max_rows: Largest number of rows in a sparse message; None: all rows.

    Attributes:
        value: NumPy array of `shape` and `dtype`, which the caller changes in place. It begins with
            zeros.
        channel: The channel that carries the messages.
    """

    def __init__(
        self, value: np.ndarray, part: Part, channel: Channel, max_rows: int | None = None
    ) -> None:
        self.value, self.channel = value, channel
        self._part = part
        self._max_rows = len(value) if max_rows is None else max_rows
        self._scattered = np.zeros(0, np.int64)

    @classmethod
    def create(
        cls,
        shape: Sequence[int],
        dtype: str = "float32",
        dataflow: Dataflow = "all",
        representation: Literal["dense", "sparse"] = "dense",
        *,
        group: PeerGroup,
        wire_dtype: str | None = None,
        max_rows: int | None = None,
        consistency: Consistency = "bsp",
        staleness: int = 4,
        initial: np.ndarray | None = None,
    ) -> SharedVector:
        """Makes a vector. A collective call.

        Args:
            shape: Shape of the value; all dimensions at least 1.
            dtype: "float32", "float64", "float16" or "bfloat16".
            dataflow: Who sends to whom; see `receivers`.
            representation: "dense": messages have the whole value. "sparse": they have rows of the
                first dimension.
            group: The ranks.
            wire_dtype: Type in which values travel; None: `dtype`.
            max_rows: Largest number of rows in a sparse message, which decides the size of the
                slots; None: all rows.
            consistency: What `barrier` waits for; see `Channel`.
            staleness: See `Channel`.
            initial: Of `shape`, the first value; None: zeros. A process that replaces a lost rank
                begins with the value of the first rank.

        Returns:
            The vector.

        Raises:
            ValueError: An argument is out of its range.
            PeerFailure: Another rank has failed.
        """
        sizes = tuple(int(n) for n in shape)
        if not sizes or min(sizes) < 1:
            raise ValueError(f"shape must have dimensions of at least 1, got {list(shape)}")
        if representation not in ("dense", "sparse"):
            raise ValueError(f"representation must be 'dense' or 'sparse', got {representation!r}")
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {max_rows}")
        value = np.zeros(sizes, dtype_of(dtype))
        if initial is not None:
            if initial.shape != sizes:
                raise ValueError(f"initial must have the shape {list(sizes)}, got {initial.shape}")
            value[...] = initial
        share = functools.partial(group.broadcast, value)
        part = Part(sizes, dtype_of(wire_dtype or dtype), representation == "sparse")
        capacity = part.capacity(max_rows)
        channel = Channel(group, dataflow, capacity, consistency, staleness, share)
        if group.has_joined:
            channel.share()
        return cls(value, part, channel, max_rows)

    @property
    def counts(self) -> Counts:
        """What the channel has done; missed and overwritten updates, for example."""
        return self.channel.counts

    def scatter(self, ids: Any = None) -> None:
        """Writes the value, or some of its rows, into the slots of the receivers.

        Args:
            ids: Integers, distinct rows in [0, shape[0]), for the representation "sparse"; None for
                "dense".

        Raises:
            ValueError: `ids` does not fit the representation, or there are more than `max_rows`.
            PeerFailure: Another rank has failed.
        """
        if (ids is not None) != self._part.sparse:
            raise ValueError(
                f"ids must be {'rows' if self._part.sparse else 'None'} for this representation, "
                f"got {'None' if ids is None else 'rows'}"
            )
        if not self._part.sparse:
            self.channel.scatter(encode([self._part], [self.value]))
            return
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(f"ids must be a vector of integers, got {array.dtype} {array.shape}")
        rows = array.astype(np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self.value):
            raise ValueError(
                f"ids must be in [0, {len(self.value)}), got {rows.min()} to {rows.max()}"
            )
        if np.unique(rows).size < rows.size:
            raise ValueError("ids must be distinct")
        if rows.size > self._max_rows:
            raise ValueError(f"ids must be at most max_rows = {self._max_rows}, got {rows.size}")
        self.channel.scatter(encode([self._part], [(rows, self.value[rows])]))
        self._scattered = rows

    def barrier(self) -> None:
        """Waits as the consistency of the vector says.

        Raises:
            PeerFailure: Another rank has failed.
        """
        self.channel.barrier()

    def gather(self, reduce: Reduce = "average_with_own") -> list[Update]:
        """Merges the updates that have arrived since the last gather into `value`.

        Where nothing has arrived, `value` stays as it is. Of several updates of one sender only the
        newest is there; `counts.overwritten` counts the others.

        Args:
            reduce: "average" of the received ones, "average_with_own", "sum" with the own one,
                "replace" by the newest, or a function (value, updates) -> new value. A row of a
                sparse vector is merged over the ranks that sent it; "average_with_own" counts the
                own row if the last `scatter` sent it. Ranks are added in ascending order.

        Returns:
            The updates, in ascending order of the sender.

        Raises:
            ValueError: There is no such reduction.
            PeerFailure: Another rank has failed.
        """
        check_reduce(reduce)
        updates = [self._update(message) for message in self.channel.gather()]
        if not updates:
            return []
        own = Update(self.channel.group.rank, self.channel.iteration, None, self.value)
        if callable(reduce):
            self.value[...] = np.asarray(reduce(self.value, updates))
        elif self._part.sparse:
            own = own._replace(ids=self._scattered)
            ids, rows = reduce_rows(reduce, own, updates, self.value)
            self.value[ids] = rows
        else:
            self.value[...] = reduce_dense(reduce, own, updates)
        return updates

    def exchange(self, reduce: Reduce = "average_with_own", ids: Any = None) -> list[Update]:
        """`scatter`, `barrier` and `gather`. If a rank has failed, the others go on without it.

        Args:
            reduce: See `gather`.
            ids: See `scatter`.

        Returns:
            The updates; none if a rank has failed.

        Raises:
            ValueError: See `scatter` and `gather`.
        """
        try:
            self.scatter(ids)
            self.barrier()
            return self.gather(reduce)
        except PeerFailure as failure:
            self.channel.group.survive(failure)
            return []

    def _update(self, message: Message) -> Update:
        [(ids, values)] = decode([self._part], message.data)
        return Update(message.sender, message.iteration, ids, values)
