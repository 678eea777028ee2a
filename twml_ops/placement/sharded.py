"""A table divided among the replicas: each holds every k-th row, and they exchange ids and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import stateless_value
from twml_ops.ops._tape import tf_variable
from twml_ops.placement import collectives
from twml_ops.placement.base import REPLICATED, AddWeight, Placement, set_placement
from twml_ops.placement.entries import CsrEntries, entries_of_shard


class ShardedPlacement(Placement):
    """Replica p of k holds the rows of the ids with id mod k = p: N D / k numbers each.

    A batch's entries go to all replicas; each multiplies those of its rows, for all examples, and
    gives every replica the part of the sums that is its examples'. The gradient of a shard is
    that of the joined batch already, so nothing is added up afterwards.

    The shards are the replicas' copies of one mirrored variable, which here are no copies; so are
    those of its slots.

    Args:
        strategy: whose replicas.
        num_rows: N.
    """

    is_sharded = True

    def __init__(self, strategy: tf.distribute.Strategy, num_rows: int) -> None:
        self.strategy = strategy
        self.num_rows = num_rows
        self.shards = int(strategy.num_replicas_in_sync)

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """See `Placement`. Cut from one initial table, so its values do not depend on k."""
        del name, dtype
        with tf.init_scope():
            table = tf.convert_to_tensor(initializer(shape))
            first = self._cut(table)[0]
            variable = add(first.shape, lambda *_, **__: first)
            self.assign(variable, table)
        set_placement(variable, self)
        return variable

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement`."""
        if stateless_value(table) is not None:
            raise NotImplementedError(
                'stateless_call takes whole tables, and one with placement="sharded" is divided '
                'among replicas; use placement="auto"'
            )
        if collectives.num_replicas() == 1:  # outside of the replicas: all shards, one by one
            shards = enumerate(self._shards(table))
            parts = [(entries_of_shard(entries, p, self.shards), shard) for p, shard in shards]
            return tf.add_n([ops.sparse_linear(*part, shard) for part, shard in parts])
        ids, values, row_splits = entries
        lengths, all_ids = collectives.gather_per_replica([row_splits[1:] - row_splits[:-1], ids])
        everyone = (
            tf.concat(all_ids, axis=0),
            None if values is None else collectives.all_gather(values),
            tf.concat([tf.zeros([1], tf.int64), tf.cumsum(tf.concat(lengths, axis=0))], axis=0),
        )
        me = tf.distribute.get_replica_context().replica_id_in_sync_group
        sums = ops.sparse_linear(*entries_of_shard(everyone, me, self.shards), table)
        return collectives.reduce_scatter(sums, tf.stack([tf.size(x) for x in lengths]))

    def reduce_gradient(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """See `Placement`."""
        return gradient

    def read(self, variable: Any) -> tf.Tensor:
        """See `Placement`."""
        rows = tf.stack(self._shards(variable), axis=1)  # [rows of a shard, k, D]
        return tf.reshape(rows, [-1, rows.shape[2]])[: self.num_rows]

    def assign(self, variable: Any, table: Any) -> None:
        """See `Placement`."""
        table = tf.cast(table, variable.dtype)
        for shard, part in zip(self._shards(variable), self._cut(table), strict=True):
            shard.assign(part)

    def _shards(self, variable: Any) -> Sequence[tf.Variable]:
        return self.strategy.experimental_local_results(tf_variable(variable))

    def _cut(self, table: tf.Tensor) -> list[tf.Tensor]:
        padded = tf.pad(table, [[0, -self.num_rows % self.shards], [0, 0]])
        return [padded[p :: self.shards] for p in range(self.shards)]


def sharded_placement(num_rows: int) -> Placement:
    """The placement of a table of so many rows in the strategy in force, if it has replicas."""
    strategy = tf.distribute.get_strategy()
    if type(strategy) is tf.distribute.MirroredStrategy and strategy.num_replicas_in_sync > 1:
        return ShardedPlacement(strategy, num_rows)
    return REPLICATED


class NotCheckpointable(tf.train.experimental.PythonState):
    """Part of a layer with shards: checkpoints and SavedModels, which know one copy, fail."""

    def serialize(self) -> str:
        """Refuses."""
        raise ValueError(
            'a table with placement="sharded" cannot be in a TensorFlow checkpoint or SavedModel, '
            "which would keep one replica's shard only: save the model, or its weights, as .keras "
            "or .weights.h5, which hold the whole table and load without replicas too"
        )

    def deserialize(self, string_value: str) -> None:
        """Never saved, so never restored."""
