"""Updates where the variables are: the user's optimizer, its arithmetic placed on the servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.tables import RemoteTable
from twml_ops.distribute.hybrid.wire import ShardEntries, concat_entries
from twml_ops.optimizers import SparseOptimizer


def check_optimizer(optimizer: Any) -> None:
    """Refuses what would need more than the shard or the rows at hand.

    Raises:
        ValueError: an optimizer that is not of this package, or that clips by norms.
    """
    for each in component_optimizers(optimizer):
        if not isinstance(each, SparseOptimizer):
            raise ValueError(
                "optimizer must be one of twml_ops.optimizers, which know how to update a table "
                f"where it is, got {type(each).__name__}"
            )
        refused = ("clipnorm", "global_clipnorm", "use_ema", "gradient_accumulation_steps")
        for name in refused:
            if getattr(each, name, None):
                raise ValueError(
                    f"{name} needs a whole table in one place; tables are divided over servers"
                )


def component_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that `optimizer` consists of: several in a CompositeOptimizer."""
    return list(getattr(optimizer, "all_optimizers", [optimizer]))


def optimizer_of(optimizer: Any, variable: Any) -> Any:
    """The optimizer that trains `variable`."""
    choose = getattr(optimizer, "optimizer_of", None)
    return optimizer if choose is None else choose(variable)


def update_shard(
    optimizer: Any,
    table: RemoteTable,
    p: int,
    uses: Sequence[tuple[Sequence[tuple[ShardEntries, tf.Tensor]], bool]],
    rate: tf.Tensor,
) -> None:
    """Backward and update of shard `p`, on its server.

    Args:
        optimizer: in charge of the table.
        table: whose shard.
        p: which.
        uses: of each use of the table: the entries and the gradient of their products [B, columns]
            of each worker, on the server, in the order in which they are summed; and whether
            entries have no values. The gradients of several uses are added up, as those of a
            variable are.
        rate: learning rate.
    """
    shard = table.shards[p]
    with tf.device(shard.device):
        slices = _added([_slices(shard, *use) for use in uses])
        (slices,) = optimizer.clip_gradients([slices])
        decay = optimizer.weight_decay_of(table)
        optimizer.update_variable(slices, shard, table.slots[p], rate, weight_decay=decay)


def _slices(
    shard: RemoteVariable, contributions: Sequence[tuple[ShardEntries, tf.Tensor]], binary: bool
) -> tf.IndexedSlices:
    """The gradient of a shard by one use of its table in all workers."""
    part = concat_entries([part for part, _ in contributions])
    gradients = [g for _, g in contributions]
    gradient = gradients[0] if len(gradients) == 1 else tf.concat(gradients, axis=0)
    shape = tf.constant(shard.shape.as_list(), tf.int64)
    return ops.weights_grad(part.ids, part.values, part.row_splits, gradient, shape, binary)


def _added(gradients: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    first = gradients[0]
    if len(gradients) == 1:
        return first
    values = tf.concat([g.values for g in gradients], axis=0)
    indices = tf.concat([g.indices for g in gradients], axis=0)
    return tf.IndexedSlices(values, indices, first.dense_shape)


def update_dense_variable(
    optimizer: Any,
    gradient: Any,
    shared: RemoteVariable,
    slots: Sequence[RemoteVariable],
    weight_decay: float,
    rate: tf.Tensor,
) -> None:
    """The update of a dense variable's shared on its server."""
    with tf.device(shared.device):
        (gradient,) = optimizer.clip_gradients([gradient])
        optimizer.update_variable(gradient, shared, slots, rate, weight_decay=weight_decay)
