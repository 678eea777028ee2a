"""A table sharded over the replicas of a `MirroredStrategy`, each of which holds every k-th row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import stateless_value
from twml_ops.ops._tape import tf_variable
from twml_ops.placement import collectives
from twml_ops.placement.base import REPLICATED, AddWeight, Placement, check_whole_shape
from twml_ops.placement.entries import CsrEntries, entries_of_shard
from twml_ops.placement.whole_values import show_whole


class ShardedPlacement(Placement):
    """Replica s of k holds the rows of the ids with id mod k = s, about N / k rows.

    The entries of all batches are gathered on every replica. Each replica multiplies the entries of
    its own rows, for all examples, and a reduce-scatter gives every replica the products of its own
    examples. The gradient of a shard is computed from the gathered batch, so it already is the sum
    over all replicas.

    The shards are stored as the replicas' copies of one mirrored variable, whose values differ; the
    same holds for the optimizer's slots. Keras sees the whole table; see `show_whole`.

    Args:
        strategy: The strategy whose replicas hold the shards.
        num_rows: N, rows of the whole table.
    """

    is_sharded = True

    def __init__(self, strategy: tf.distribute.Strategy, num_rows: int) -> None:
        self.strategy = strategy
        self.num_rows = num_rows
        self.num_shards = int(strategy.num_replicas_in_sync)

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """See `Placement.create`. The initial values do not depend on the number of replicas."""
        del name, dtype
        with tf.init_scope():
            table = tf.convert_to_tensor(initializer(shape))
            first = self._split(table)[0]
            variable = add(first.shape, lambda *_, **__: first)
            self.assign(variable, table)
        show_whole(variable, self)
        return variable

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement.sparse_linear`.

        Raises:
            NotImplementedError: The layer runs in Keras 3's `stateless_call`.
        """
        if stateless_value(table) is not None:
            raise NotImplementedError(
                'stateless_call takes whole tables, but one with placement="sharded" is sharded '
                'over replicas; use placement="auto"'
            )
        if collectives.num_replicas() == 1:  # outside of the replica context: one shard at a time
            products = [
                ops.sparse_linear(*entries_of_shard(entries, s, self.num_shards), shard)
                for s, shard in enumerate(self._shards(table))
            ]
            return tf.add_n(products)
        ids, values, row_splits = entries
        lengths, all_ids = collectives.gather_per_replica([row_splits[1:] - row_splits[:-1], ids])
        all_entries = (
            tf.concat(all_ids, axis=0),
            None if values is None else collectives.all_gather(values),
            tf.concat([tf.zeros([1], tf.int64), tf.cumsum(tf.concat(lengths, axis=0))], axis=0),
        )
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        own_entries = entries_of_shard(all_entries, replica, self.num_shards)
        products = ops.sparse_linear(*own_entries, table)
        return collectives.reduce_scatter(products, tf.stack([tf.size(x) for x in lengths]))

    def reduce_gradient(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """See `Placement.reduce_gradient`. The gradient of a shard already is the sum."""
        return gradient

    def whole_shape(self, variable: Any) -> tuple[int, ...]:
        """See `Placement.whole_shape`."""
        return self.num_rows, *self._shards(variable)[0].shape[1:]

    def read(self, variable: Any) -> tf.Tensor:
        """See `Placement.read`."""
        rows = tf.stack(self._shards(variable), axis=1)  # [rows of a shard, k, ...]
        return tf.reshape(rows, tf.concat([[-1], tf.shape(rows)[2:]], axis=0))[: self.num_rows]

    def assign(self, variable: Any, table: Any) -> None:
        """See `Placement.assign`."""
        shards = self._shards(variable)
        check_whole_shape(table, self.whole_shape(variable), f"the variable {shards[0].name}")
        table = tf.cast(table, shards[0].dtype)
        for shard, value in zip(shards, self._split(table), strict=True):
            shard.assign(value)

    def _shards(self, variable: Any) -> Sequence[tf.Variable]:
        return self.strategy.experimental_local_results(tf_variable(variable))

    def _split(self, table: tf.Tensor) -> list[tf.Tensor]:
        rest = [[0, 0]] * (table.shape.rank - 1)
        padded = tf.pad(table, [[0, -self.num_rows % self.num_shards], *rest])
        return [padded[s :: self.num_shards] for s in range(self.num_shards)]


def sharded_placement(num_rows: int) -> Placement:
    """Returns the placement of a table that a layer wants sharded.

    Args:
        num_rows: N, rows of the whole table.

    Returns:
        A `ShardedPlacement` in the scope of a `MirroredStrategy` of at least two replicas,
        otherwise `REPLICATED`.
    """
    strategy = tf.distribute.get_strategy()
    if type(strategy) is tf.distribute.MirroredStrategy and strategy.num_replicas_in_sync > 1:
        return ShardedPlacement(strategy, num_rows)
    return REPLICATED


class NotCheckpointable(tf.train.experimental.PythonState):
    """Makes checkpoints and SavedModels of a layer fail whose variables are no whole tables.

    TensorFlow would save such a variable as if it were the whole table.
    """

    def serialize(self) -> str:
        """Raises.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            'a table with placement="sharded" or storage=Tiered(...) cannot be in a TensorFlow '
            "checkpoint or SavedModel, which would keep some of its rows only: save the model, or "
            "its weights, as .keras or .weights.h5, which hold the whole table, and load the "
            "weights into a model without these arguments"
        )

    def deserialize(self, string_value: str) -> None:
        """Does nothing, since nothing is ever saved."""
