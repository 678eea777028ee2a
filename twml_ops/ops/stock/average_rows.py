"""The op Twml>AverageRows in stock ops: moving averages of the touched rows of a table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import check


def average_rows(
    var: tf.Tensor,
    average: tf.Tensor,
    steps: tf.Tensor,
    ids: tf.Tensor,
    step: Any,
    log_momentum: Any,
    hogwild: bool = False,
) -> Any:
    """The op Twml>AverageRows; `var`, `average` and `steps` are handles of variables."""
    del hogwild  # stock ops take no locks that could be shared
    ids = tf.convert_to_tensor(ids)
    check.rank(ids, 1, "ids")
    check.variable_dtype(var, "var", None, tf.float32, tf.bfloat16)
    check.variable_dtype(average, "average")
    num_rows = tf.raw_ops.VariableShape(input=var, out_type=tf.int64)[0]
    ids = check.require_well_formed(ids, check.ids_in_range(ids, num_rows))
    return advance_rows(var, average, steps, ids, step, log_momentum)


def advance_rows(
    var: tf.Tensor,
    average: tf.Tensor,
    steps: tf.Tensor,
    ids: tf.Tensor,
    step: Any,
    log_momentum: Any,
) -> Any:
    """Advances the averages of rows whose numbers are in range.

    Returns:
        The operation that writes them, or None in eager mode.
    """
    dtype = check.variable_dtype(var, "var", None, tf.float32, tf.bfloat16)

    def rows_of(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=dtype)

    # Rows of repeated ids are written several times, with equal values.
    values, of_rows = advanced(
        rows_of(var, dtype),
        rows_of(average, tf.float32),
        rows_of(steps, tf.int64),
        step,
        log_momentum,
    )
    written = [
        tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=ids, updates=updates)
        for handle, updates in ((average, values), (steps, of_rows))
    ]
    return None if tf.executing_eagerly() else tf.group(*written)


def advanced(
    weights: tf.Tensor, averages: tf.Tensor, steps: tf.Tensor, step: Any, log_momentum: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """The formula of cc/core/average_rows.h.

    Args:
        weights: Rows of a variable [R, ...], or a scalar.
        averages: Their averages, of the same shape.
        steps: int64 [R], or a scalar: the step before which the averages count.
        step: Integer scalar, the number of the step before which they shall count.
        log_momentum: Scalar, the logarithm of the momentum.

    Returns:
        The averages and steps afterwards.
    """
    dtype = tf.float64 if averages.dtype == tf.float64 else tf.float32
    step = tf.cast(step, tf.int64)
    elapsed = tf.cast(step - steps, dtype)
    share = -tf.math.expm1(elapsed * tf.cast(log_momentum, dtype))
    share = tf.where(steps <= 0, tf.ones_like(share), share)
    columns = [1] * (averages.shape.rank - steps.shape.rank)
    share = tf.reshape(share, tf.concat([tf.shape(share), columns], axis=0))
    weights = tf.cast(weights, dtype)
    before = tf.cast(averages, dtype)
    moved = tf.where(tf.equal(share, 1), weights, before + share * (weights - before))
    due = tf.reshape(steps < step, tf.shape(share))
    return tf.where(due, tf.cast(moved, averages.dtype), averages), tf.maximum(steps, step)
