"""Updates of shards and dense variables on the servers that hold them, by the user's optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.hybrid import dense_gradients
from twml_ops.distribute.hybrid.remote_table import RemoteTable
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.wire import ShardEntries, concat_entries
from twml_ops.optimizers import SparseOptimizer

ShardGradient = tuple[ShardEntries, tf.Tensor]
"""Entries of a batch and the gradient of their product with a shard, both on the shard's server."""

_NEEDS_WHOLE_TABLE = ("clipnorm", "global_clipnorm", "gradient_accumulation_steps")


def check_optimizer(optimizer: Any) -> None:
    """Checks that an optimizer can update a shard without the rest of the table.

    Args:
        optimizer: An optimizer of this package.

    Raises:
        ValueError: The optimizer is not of this package, or has an option that needs whole tables.
    """
    for each in component_optimizers(optimizer):
        if not isinstance(each, SparseOptimizer):
            raise ValueError(
                "optimizer must be one of twml_ops.optimizers, which can update a table on a "
                f"server, got {type(each).__name__}"
            )
        if each.use_ema:
            raise ValueError("use_ema is not supported with tables on servers, expected False")
        if getattr(each, "loss_scale_factor", None):
            raise ValueError(
                "loss_scale_factor is not supported with tables on servers, which do not scale the "
                f"loss, expected None, got {each.loss_scale_factor!r}"
            )
        for name in _NEEDS_WHOLE_TABLE:
            if getattr(each, name, None):
                raise ValueError(
                    f"{name} needs a whole table in one place, but tables are sharded over servers"
                )


def component_optimizers(optimizer: Any) -> list[Any]:
    """Returns the optimizers of a `CompositeOptimizer`, or the optimizer itself in a list."""
    return list(getattr(optimizer, "all_optimizers", [optimizer]))


def optimizer_of(optimizer: Any, variable: Any) -> Any:
    """Returns the optimizer that trains `variable`, which a `CompositeOptimizer` chooses."""
    choose = getattr(optimizer, "optimizer_of", None)
    return optimizer if choose is None else choose(variable)


def update_shard(
    optimizer: Any,
    table: RemoteTable,
    p: int,
    uses: Sequence[tuple[Sequence[ShardGradient], bool]],
    rate: tf.Tensor,
    step: Any,
) -> None:
    """Computes the gradient of shard `p` and updates the shard, on its server.

    Args:
        optimizer: The optimizer of the table.
        table: The table.
        p: The number of the server.
        uses: For each use of the table in the model: the entries and gradients [B, columns] of each
            worker, in the order in which they are added; and whether the entries have no values.
            The gradients of several uses are added up.
        rate: The learning rate of this step.
        step: The number of steps before this one, an integer scalar or variable.
    """
    shard = table.shards[p]
    with tf.device(shard.device):
        slices = dense_gradients.add([_shard_gradient(shard, *use) for use in uses])
        (slices,) = optimizer.clip_gradients([slices])
        decay = optimizer.weight_decay_of(table)
        optimizer.update_variable(
            slices, shard, table.slots[p], rate, weight_decay=decay, step=step
        )


def _shard_gradient(
    shard: RemoteVariable, contributions: Sequence[ShardGradient], binary: bool
) -> tf.IndexedSlices:
    """Returns the gradient of a shard from one use of its table by all workers."""
    entries = concat_entries([entries for entries, _ in contributions])
    gradients = [g for _, g in contributions]
    gradient = gradients[0] if len(gradients) == 1 else tf.concat(gradients, axis=0)
    shape = tf.constant(shard.shape.as_list(), tf.int64)
    return ops.weights_grad(
        entries.ids, entries.values, entries.row_splits, gradient, shape, binary
    )


def update_dense_variable(
    optimizer: Any,
    gradient: Any,
    variable: RemoteVariable,
    slots: Sequence[RemoteVariable],
    weight_decay: float,
    rate: tf.Tensor,
    step: Any,
) -> None:
    """Updates a dense variable on its server.

    Args:
        optimizer: The optimizer of the variable.
        gradient: Its gradient, a tensor or `tf.IndexedSlices`.
        variable: The variable.
        slots: The optimizer's slots of the variable.
        weight_decay: The weight decay of the variable; 0: none.
        rate: The learning rate of this step.
        step: The number of steps before this one, an integer scalar or variable.
    """
    with tf.device(variable.device):
        (gradient,) = optimizer.clip_gradients([gradient])
        optimizer.update_variable(
            gradient, variable, slots, rate, weight_decay=weight_decay, step=step
        )
