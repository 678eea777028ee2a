"""Peer-to-peer training of Keras models: a callback of `fit`."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np
import tensorflow as tf

from twml_ops.distribute.peer_weights import Shared, What, shared_weights
from twml_ops.peers import Channel, Counts, PeerFailure, PeerGroup, Update
from twml_ops.peers.channel import Consistency
from twml_ops.peers.dataflow import Dataflow
from twml_ops.peers.messages import decode, encode


class PeerAveraging(tf.keras.callbacks.Callback):
    """Averages the weights of ranks that train the same model on different shares of the data.

        group = peers.PeerGroup(timeout=300)
        batches = source.shard(group.rank, group.size).dataset(256, shuffle=True)
        model.fit(batches, epochs=4, callbacks=[distribute.PeerAveraging(group, every=16)])

    Start the ranks with `twml-ops launch --peers` or `mpirun`. When training begins, all ranks get
    the weights of the first one, or of `root`. Every `every` batches, and at the end of each epoch,
    a rank sends its weights to the ranks of `dataflow` and averages those that it has received with
    its own, in ascending order of the rank. Dense weights travel as a whole, tables by the rows
    that changed since the last message; a row is averaged over the ranks that sent it. Slots of the
    optimizer are not exchanged. With one rank, training is the same as without the callback, bit
    for bit. When training ends, all ranks exchange their weights once more; with the dataflow "all"
    they then have the same.

    If a rank dies, the others go on; see docs/peers.md. A rank whose weights are NaN or infinite
    ends, so that the others do not receive them. With `regroup` they divide the data anew, and lost
    ranks are replaced: `fit` then ends with an epoch, before all epochs are done, and is called
    again.

        while group.epoch < 4:
            batches = source.shard(group.rank, group.size).dataset(256, shuffle=True)
            averaging = distribute.PeerAveraging(group, every=16, regroup=True)
            model.fit(batches, initial_epoch=group.epoch, epochs=4, callbacks=[averaging])

    Args:
        group: The ranks. Its `timeout` must be longer than the time by which ranks differ.
        every: Batches between two exchanges, at least 1. With `steps_per_execution` they take place
            after the execution in which they are due.
        what: "weights"; or "gradients": the sums of the updates since the last message, which
            receivers add to the weights that they had then. This takes the memory of the weights
            once more.
        dataflow: Who sends to whom; see `twml_ops.peers.receivers`.
        consistency: Whether ranks wait for each other; see `twml_ops.peers.Channel`.
        staleness: See `twml_ops.peers.Channel`.
        wire_dtype: "float16" or "bfloat16" halve the messages of float32 weights; None: the type of
            each weight.
        max_rows: Largest number of rows of a table in a message, which decides how much memory the
            slots take; None: all.
        root: The rank whose weights all ranks get when training begins.
        regroup: Whether `fit` ends with the epoch after ranks were lost. `PeerGroup.regroup` is
            called at its end.
        before: With `regroup`: the epochs of earlier trainings of the group, which `group.epoch`
            counts as well.
        epochs: With `regroup`: the number of epochs after which lost ranks are not replaced; None:
            that of `fit`.
        each_epoch: Whether `fit` is called for each epoch. The channel then stays open, and each
            call ends with an exchange of the weights that the other callbacks have left.
        channel: The channel of an earlier training of the same ranks, which is used if its messages
            are large enough; None: there is none.

    Attributes:
        channel: The channel; None before training begins, or if there is one rank.
        counts: What the channel has done; None before training begins.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        group: PeerGroup,
        every: int = 16,
        what: What = "weights",
        dataflow: Dataflow = "all",
        consistency: Consistency = "bsp",
        staleness: int = 4,
        wire_dtype: str | None = None,
        max_rows: int | None = None,
        root: int = 0,
        regroup: bool = False,
        before: int = 0,
        epochs: int | None = None,
        each_epoch: bool = False,
        channel: Channel | None = None,
    ) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        if what not in get_args(What):
            raise ValueError(f"what must be one of {get_args(What)}, got {what!r}")
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {max_rows}")
        self._group, self._every, self._what = group, every, what
        self._dataflow, self._consistency, self._staleness = dataflow, consistency, staleness
        if not 0 <= root < group.size:
            raise ValueError(f"root must be in [0, {group.size}), got {root}")
        self._wire_dtype, self._max_rows, self._root = wire_dtype, max_rows, root
        self._regroups, self._must_regroup = regroup, False
        self._before, self._epochs, self._each_epoch = before, epochs, each_epoch
        self._shared: list[Shared] = []
        self.channel: Channel | None = None
        self._earlier = channel

    @property
    def counts(self) -> Counts | None:
        """See the class."""
        return self.channel.counts if self.channel else None

    def on_train_begin(self, logs: Any = None) -> None:
        """Gives all ranks the weights of one of them.

        Args:
            logs: not used.
        """
        if self._group.size == 1 and self.channel is None:
            return
        if self._each_epoch and self.channel is not None:
            return
        self._shared = shared_weights(self.model, self._what, self._wire_dtype, self._max_rows)
        for each in self._shared:
            each.start(functools.partial(self._group.broadcast, root=self._root))
        capacity = sum(each.part.capacity(self._max_rows) for each in self._shared)
        channel, self._earlier = self._earlier, None
        if channel is not None and (channel.is_closed or channel.capacity < capacity):
            channel.is_closed, channel = True, None
        self.channel = channel or Channel(
            self._group, self._dataflow, capacity, self._consistency, self._staleness
        )
        self._must_regroup = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts to count batches.

        Args:
            epoch: its number.
            logs: not used.

        Raises:
            ValueError: A process that has joined begins with another epoch than the others.
        """
        self._last = -1
        expected = self._group.epoch - self._before
        if self._regroups and epoch != expected:
            raise ValueError(
                f"initial_epoch must be group.epoch, {expected}, for regroup; got {epoch}"
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Exchanges weights if it is time.

        Args:
            batch: number of the last batch of the execution, in the epoch.
            logs: not used.
        """
        if self.channel is not None and batch - self._last >= self._every:
            self._last = batch
            self._exchange()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Exchanges weights, and with "bsp" joins the rounds of ranks that have more batches.

        Args:
            epoch: its number.
            logs: not used.
        """
        channel = self.channel
        if channel is not None and channel.consistency == "bsp":
            self._join_rounds(channel)
        elif channel is not None:
            self._exchange()
        epochs = self.params["epochs"] if self._epochs is None else self._epochs
        done = self._before + epoch + 1
        if self._regroups and self._group.complete_epoch(done, self._before + epochs):
            self._must_regroup = self.model.stop_training = True

    def _join_rounds(self, channel: Channel) -> None:
        all_finished = False
        while not all_finished:
            try:
                self._scatter()
                all_finished = channel.join_round(finished=True)
                self._merge()
            except PeerFailure as failure:
                self._go_on(failure)

    def on_train_end(self, logs: Any = None) -> None:
        """Exchanges the final weights.

        Args:
            logs: not used.
        """
        channel = self.channel
        if channel is None:
            return
        if channel.consistency != "bsp" or self._each_epoch:
            try:
                if self._each_epoch:
                    channel.pause()
                else:
                    channel.finish()
                self._group.all_sum([0], "the wait for all ranks to finish")
                self._scatter()
                self._group.all_sum([0], "the exchange of the final weights")
                self._merge()
            except PeerFailure as failure:
                self._go_on(failure)
        channel.is_closed = self._must_regroup or not self._each_epoch
        if self._must_regroup:
            joined = self._group.regroup()
            if self._group.rank == 0 and joined:
                print(f"ranks {list(joined)} were replaced", flush=True)

    def _exchange(self) -> None:
        assert self.channel is not None
        try:
            self._scatter()
            self.channel.barrier()
            self._merge()
        except PeerFailure as failure:
            self._go_on(failure)

    def _scatter(self) -> None:
        assert self.channel is not None
        values = [each.outgoing() for each in self._shared]
        for value in values:
            array = value[1] if isinstance(value, tuple) else value
            if not np.isfinite(np.asarray(array, np.float32)).all():
                self._group.fail("the weights are not finite: try a lower learning rate")
        self.channel.scatter(encode([each.part for each in self._shared], values))

    def _merge(self) -> None:
        assert self.channel is not None
        parts = [each.part for each in self._shared]
        messages = [(m, decode(parts, m.data)) for m in self.channel.gather()]
        for i, each in enumerate(self._shared):
            received = [Update(m.sender, m.iteration, *values[i]) for m, values in messages]
            each.merge(self._group.rank, self.channel.iteration, received)

    def _go_on(self, failure: PeerFailure) -> None:
        assert self.channel is not None
        self._group.survive(failure)
        for each in self._shared:
            each.give_back()
