"""cc/core/online_standardize.h in stock ops."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.ops.stock import check, normalization
from twml_ops.ops.stock.sparse_linear import sorted_unique


def online_standardize(
    ids: tf.Tensor,
    values: tf.Tensor,
    moments: tf.Tensor,
    bias: Sequence[tf.Tensor],
    training: tf.Tensor,
    groups: Sequence[tf.Tensor] = (),
    *,
    epsilon: float,
    clip: float,
    decay: float,
    nonfinite: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>OnlineStandardize; `moments` and `bias` (one or none) are handles."""
    del groups  # stock ops have none
    normalization.check_ranks(ids, values, training, bias)
    check.variable_dtype(moments, "moments", 2, tf.float64)
    normalization.check_options(epsilon, decay)
    if not clip > 0:
        raise check.invalid_argument(f"clip must be positive, got {clip}")
    ids = check.require_well_formed(
        ids, *normalization.batch_preconditions(ids, values, moments, bias, "as moments has rows")
    )
    if nonfinite == "error":
        ids = check.require(ids, check.all_finite(values, tf.math.is_inf))
    finite = tf.math.is_finite(values)
    wide = tf.where(finite, tf.cast(values, tf.float64), 0.0)
    with tf.control_dependencies(_update_moments(ids, wide, finite, moments, training, decay)):
        rows = tf.stop_gradient(_gather(moments, ids))
    count, mean, m2 = tf.unstack(rows, axis=1)
    known = finite & (count > 0)
    variance = tf.where(count > 0, m2, 0.0) / tf.where(count > 0, count, 1.0)
    sd = tf.maximum(tf.sqrt(tf.maximum(variance, 0.0)), epsilon)
    z = tf.where(known, (wide - mean) / sd, 0.0)
    inside = known & (tf.abs(z) <= clip)
    scale = tf.cast(tf.where(inside, 1 / sd, 0.0), tf.float32)
    # Not tf.clip_by_value, whose gradient is 0 at the edge.
    y = tf.cast(tf.where(inside, z, tf.sign(z) * clip), tf.float32)
    return normalization.add_bias(y, ids, bias), scale


def _gather(moments: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=moments, indices=ids, dtype=tf.float64)


def _update_moments(
    ids: tf.Tensor,
    wide: tf.Tensor,
    finite: tf.Tensor,
    moments: tf.Tensor,
    training: tf.Tensor,
    decay: float,
) -> list[tf.Tensor]:
    def update() -> tf.Operation | None:
        touched, positions = sorted_unique(tf.boolean_mask(ids, finite))
        seen = tf.boolean_mask(wide, finite)
        number = tf.size(touched)

        def total(x: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(x, positions, number)

        count = total(tf.ones_like(seen))  # at least 1 each
        mean = total(seen) / count
        m2 = total((seen - tf.gather(mean, positions)) ** 2)
        # The formula of Chan, Golub and LeVeque, with the previous moments decayed.
        old_count, old_mean, old_m2 = tf.unstack(_gather(moments, touched), axis=1)
        old_count, old_m2 = old_count * decay, old_m2 * decay
        all_count, delta = old_count + count, mean - old_mean
        share = count / all_count
        merged = [
            all_count,
            tf.where(old_count > 0, old_mean + delta * share, mean),
            tf.where(old_count > 0, old_m2 + m2 + delta * delta * old_count * share, m2),
        ]
        return tf.raw_ops.ResourceScatterUpdate(
            resource=moments, indices=touched, updates=tf.stack(merged, axis=1)
        )

    return normalization.update_if_training(training, update)
