"""A table whose shards are variables on parameter servers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid.remote_variable import RemoteVariable


class RemoteTable:
    """A table [N, D] of which each server holds a shard. A layer has it in place of a variable.

    Server p of P holds either the rows p, p + P, p + 2 P, ... or the p-th of P equal ranges of
    columns.

    Args:
        name: "number/layer/weight", the same in all processes.
        shape: Shape of the whole table, (N, D).
        initializer: Initializer of the whole table.
        dtype: float32 or bfloat16.

    Attributes:
        path: "layer/weight", as in a single process.
        by_row: Whether the table is sharded by row (or else by column).
        shards: The variables on the servers; empty before `create`.
        slots: The optimizer's slots of each shard.
    """

    def __init__(self, name: str, shape: Sequence[int], initializer: Any, dtype: Any) -> None:
        self.name = self._unique_id = name  # Keras identifies variables by `_unique_id`
        self.path = name.partition("/")[2]
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.initializer = initializer
        self.by_row = True
        self.shards: list[RemoteVariable] = []
        self.slots: list[list[RemoteVariable]] = []

    def create(self, prefix: str, devices: Sequence[str], by_row: bool) -> None:
        """Creates the handles of the shards, which have no values yet.

        Args:
            prefix: Prefix of the variables' names.
            devices: The devices of the servers.
            by_row: Whether the table is sharded by row.
        """
        self.by_row = by_row
        self.shards = [
            RemoteVariable(
                f"{prefix}/{self.name}", self._shard_shape(p, len(devices)), self.dtype, d
            )
            for p, d in enumerate(devices)
        ]

    def create_slots(self, prefix: str, optimizer: Any) -> None:
        """Creates the handles of an optimizer's slots, on the servers of the shards.

        Args:
            prefix: Prefix of the variables' names.
            optimizer: The optimizer of this table.
        """
        self.slots = []
        for shard in self.shards:
            self.slots.append(
                [
                    RemoteVariable(f"{prefix}/{self.name}/{s.name}", s.shape, s.dtype, shard.device)
                    for s in optimizer.update_rule.slots(shard.shape, shard.dtype)
                ]
            )

    def slice_shard(self, whole: tf.Tensor, p: int) -> tf.Tensor:
        """Returns what shard `p` holds of a tensor of the table's shape."""
        count = len(self.shards)
        return whole[p::count] if self.by_row else tf.split(whole, count, axis=1)[p]

    def initialize(self) -> None:
        """Assigns the values that the layer's initializer draws."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of an initializer that is called twice
            whole = self.initializer(tuple(self.shape))
        self.assign(tf.cast(whole, self.dtype))

    def assign(self, whole: Any) -> None:
        """Assigns the whole table."""
        for p, shard in enumerate(self.shards):
            shard.assign(self.slice_shard(whole, p))

    def fetch(self) -> tf.Tensor:
        """Copies the whole table to this process."""
        shards = [s.fetch() for s in self.shards]
        return shards[0] if len(shards) == 1 else concat_shards(shards, self.by_row, self.shape[0])

    def _shard_shape(self, p: int, count: int) -> tuple[int, int]:
        rows, columns = self.shape
        return (-(-(rows - p) // count), columns) if self.by_row else (rows, columns // count)


def concat_shards(shards: Sequence[Any], by_row: bool, num_rows: int) -> tf.Tensor:
    """Puts shards together.

    Args:
        shards: All shards of a table or of one of its slots, in the order of the servers.
        by_row: Whether the table is sharded by row.
        num_rows: Number of rows of the whole table.

    Returns:
        The whole, [num_rows, ...].
    """
    if not by_row:
        return tf.concat(shards, axis=1)
    count = len(shards)
    order = tf.concat([tf.range(p, num_rows, count) for p in range(count)], axis=0)
    whole = tf.concat(shards, axis=0)
    return tf.gather(whole, tf.math.invert_permutation(order))
