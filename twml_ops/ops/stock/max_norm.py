"""cc/core/max_norm.h in stock ops."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.sparse_linear import unique


def max_norm(
    ids: tf.Tensor,
    values: tf.Tensor,
    max_abs: tf.Tensor,
    bias: Sequence[tf.Tensor],
    training: tf.Tensor,
    epsilon: float,
    nonfinite: str,
    decay: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """As the op Twml>MaxNorm: `max_abs` and `bias` (one or none) are handles of variables."""
    check.rank(ids, 1, "ids")
    check.rank(values, 1, "values")
    check.rank(training, 0, "training")
    check.table(max_abs, "max_abs", 1)
    for handle in bias:
        check.table(handle, "bias", 1)
    if not 1.2e-38 <= epsilon <= tf.float32.max:
        raise check.refusal(f"epsilon must be a positive normal number, got {epsilon}")
    if not 0 < decay <= 1:
        raise check.refusal(f"decay must be in (0, 1], got {decay}")
    ids = check.expect(ids, *_claims(ids, values, max_abs, bias))
    if nonfinite == "error":
        ids = check.require(ids, check.none_bad(values, lambda v: ~tf.math.is_finite(v)))
    finite = tf.math.is_finite(values)
    values = tf.where(finite, values, 0.0)
    with tf.control_dependencies(_raise_maxima(ids, values, finite, max_abs, training, decay)):
        seen = _gather(max_abs, ids)
    m = tf.stop_gradient(tf.maximum(seen, epsilon))
    # Not tf.clip_by_value: at the edge, where training leaves each maximum, it may lose the
    # gradient to the rounding of the quotient.
    inside = tf.abs(values) <= m
    y = tf.where(inside, values / m, tf.sign(values))
    scale = tf.where(finite & inside, 1.0 / m, 0.0)
    if bias:
        unique_ids, places = unique(ids)
        y += tf.gather(_gather(bias[0], unique_ids), places)
    return y, scale


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
    """What must run before the maxima are read: nothing in a graph made for inference."""
    always = tf.get_static_value(training)
    if always is not None and not always:
        return []

    def raised() -> tf.Tensor:
        decayed = []
        if decay < 1:
            touched, _ = unique(tf.boolean_mask(ids, finite))
            less = _gather(max_abs, touched) * decay
            op = tf.raw_ops.ResourceScatterUpdate(resource=max_abs, indices=touched, updates=less)
            decayed = [] if op is None else [op]
        with tf.control_dependencies(decayed):
            op = tf.raw_ops.ResourceScatterMax(
                resource=max_abs, indices=ids, updates=tf.abs(values)
            )
        with tf.control_dependencies([] if op is None else [op]):  # None in eager mode
            return tf.constant(True)

    return [raised() if always else tf.cond(training, raised, lambda: tf.constant(False))]


def _claims(
    ids: tf.Tensor, values: tf.Tensor, max_abs: tf.Tensor, bias: Sequence[tf.Tensor]
) -> list[check.Claim]:
    def input_dim(handle: tf.Tensor = max_abs) -> tf.Tensor:
        return tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)[0]

    message = "values must have {} items, one for each id, got {}"
    claims = [check.equal(message, check.size(ids), check.size(values))]
    if bias:
        if bias[0] is max_abs:
            raise check.refusal("max_abs and bias must be different variables")
        message = "bias must have {} items, as max_abs has, got {}"
        claims.append(check.equal(message, input_dim, lambda: input_dim(bias[0])))
    return [*claims, check.ids_in_range(ids, input_dim())]
