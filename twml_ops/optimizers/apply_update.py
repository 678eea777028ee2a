"""One update of a variable and its slots, by a kernel for rows or by TensorFlow ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._tape import device_scope_of
from twml_ops.ops.changed_rows import writes_unmarked
from twml_ops.ops.stock.apply_rows import apply_wide_rows
from twml_ops.ops.stock.update_rules import UPDATE_FORMULAS
from twml_ops.optimizers.update_rules import UpdateRule

__all__ = ["apply_update", "updates_by_kernel"]

Concurrency = Literal["locked", "hogwild"]


def updates_by_kernel(gradient: Any, variable: Any) -> bool:
    """Whether `apply_update` runs a kernel for rows, instead of TensorFlow ops on dense tensors.

    It does for sparse gradients, and for all gradients of bfloat16 variables, since the kernel
    rounds them stochastically. No kernel has float64 or float16: the rows of such variables are
    updated by TensorFlow ops.

    Args:
        gradient: `tf.Tensor` or `tf.IndexedSlices`.
        variable: the variable that it updates.

    Returns:
        True for a kernel.
    """
    return isinstance(gradient, tf.IndexedSlices) or variable.dtype == tf.bfloat16


def apply_update(
    rule: UpdateRule,
    gradient: Any,
    variable: Any,
    slots: Sequence[Any],
    learning_rate: tf.Tensor,
    step: Any,
    *,
    weight_decay: float = 0.0,
    concurrency: Concurrency = "locked",
    rounding_seed: int = 0,
) -> Any:
    """Updates one variable and its slots.

    Args:
        rule: the rule of the update.
        gradient: `tf.Tensor` of the variable's shape, or `tf.IndexedSlices`, whose repeated ids are
            summed first.
        variable: `tf.Variable`, or an object with its handle, shape, dtype, value and assignments.
        slots: the slots of the variable, as `rule.slots` describes them.
        learning_rate: float32 scalar, the learning rate of the current step.
        step: integer scalar or variable, the number of updates before this one.
        weight_decay: the touched rows first lose `learning_rate * weight_decay` times themselves.
        concurrency: see `SparseOptimizer`; for updates by a kernel.
        rounding_seed: see `SparseOptimizer`; for bfloat16 variables.

    Returns:
        The update's operation in a graph, if it runs a kernel; otherwise None.
    """
    if not updates_by_kernel(gradient, variable):
        writes_unmarked([variable, *slots])
        if weight_decay:
            decay = tf.cast(learning_rate * weight_decay, variable.dtype)
            variable.assign_sub(variable * decay)
        hyper = rule.hyperparameters(learning_rate, step, dtype=variable.dtype)
        formula = UPDATE_FORMULAS[rule.kernel_rule(variable.shape)]
        formula.step(variable, slots, tf.cast(gradient, variable.dtype), hyper)
        return None
    if variable.dtype not in (tf.float32, tf.bfloat16):
        writes_unmarked([variable, *slots])
        hyper = rule.hyperparameters(learning_rate, step, weight_decay, dtype=variable.dtype)
        kernel = rule.kernel_rule(variable.shape)
        with device_scope_of(variable):
            return apply_wide_rows(kernel, variable, slots, gradient, hyper)
    if not isinstance(gradient, tf.IndexedSlices):
        gradient = _all_rows(gradient)
    with device_scope_of(variable):
        seed: Any = 0
        if variable.dtype == tf.bfloat16:
            seed = tf.cast(step, tf.int64) + (rounding_seed << 32)
        return ops.apply_rows(
            rule.kernel_rule(variable.shape),
            variable,
            slots,
            gradient,
            rule.hyperparameters(learning_rate, step, weight_decay),
            seed=seed,
            hogwild=concurrency == "hogwild",
        )


def _all_rows(gradient: tf.Tensor) -> tf.IndexedSlices:
    """A dense gradient [N, ...] as the slices of rows 0 .. N - 1."""
    rows = tf.cast(gradient, tf.float32)
    return tf.IndexedSlices(rows, tf.range(tf.shape(rows, out_type=tf.int64)[0]), tf.shape(rows))
