"""cc/core/max_norm.h in stock ops."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.ops.stock import check, normalization
from twml_ops.ops.stock.sparse_linear import sorted_unique


def max_norm(
    ids: tf.Tensor,
    values: tf.Tensor,
    max_abs: tf.Tensor,
    bias: Sequence[tf.Tensor],
    training: tf.Tensor,
    groups: Sequence[tf.Tensor] = (),
    *,
    epsilon: float,
    nonfinite: str,
    decay: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>MaxNorm; `max_abs` and `bias` (one or none) are handles of variables."""
    del groups  # stock ops have none
    normalization.check_ranks(ids, values, training, bias)
    check.variable_dtype(max_abs, "max_abs", 1)
    normalization.check_options(epsilon, decay)
    if any(handle is max_abs for handle in bias):
        raise check.invalid_argument("max_abs and bias must be different variables")
    ids = check.require_well_formed(
        ids, *normalization.batch_preconditions(ids, values, max_abs, bias, "as max_abs has")
    )
    if nonfinite == "error":
        ids = check.require(ids, check.all_finite(values, lambda v: ~tf.math.is_finite(v)))
    finite = tf.math.is_finite(values)
    values = tf.where(finite, values, 0.0)
    with tf.control_dependencies(_raise_maxima(ids, values, finite, max_abs, training, decay)):
        seen = _gather(max_abs, ids)
    m = tf.stop_gradient(tf.maximum(seen, epsilon))
    # Not tf.clip_by_value: at the edge, where the largest value of a feature is after training,
    # the rounding of the quotient could make the gradient 0.
    inside = tf.abs(values) <= m
    y = tf.where(inside, values / m, tf.sign(values))
    scale = tf.where(finite & inside, 1.0 / m, 0.0)
    return normalization.add_bias(y, ids, bias), scale


def _gather(handle: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=tf.float32)


def _raise_maxima(
    ids: tf.Tensor,
    values: tf.Tensor,
    finite: tf.Tensor,
    max_abs: tf.Tensor,
    training: tf.Tensor,
    decay: float,
) -> list[tf.Tensor]:
    def update() -> tf.Operation | None:
        decayed = []
        if decay < 1:
            touched, _ = sorted_unique(tf.boolean_mask(ids, finite))
            lower = _gather(max_abs, touched) * decay
            op = tf.raw_ops.ResourceScatterUpdate(resource=max_abs, indices=touched, updates=lower)
            decayed = normalization.as_dependencies(op)
        with tf.control_dependencies(decayed):
            return tf.raw_ops.ResourceScatterMax(
                resource=max_abs, indices=ids, updates=tf.abs(values)
            )

    return normalization.update_if_training(training, update)
