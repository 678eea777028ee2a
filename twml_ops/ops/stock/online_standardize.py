"""cc/core/online_standardize.h in stock ops: what has been learned is used, nothing is learned."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.sparse_linear import unique


def online_standardize(
    ids: tf.Tensor,
    values: tf.Tensor,
    moments: tf.Tensor,
    bias: Sequence[tf.Tensor],
    training: tf.Tensor,
    epsilon: float,
    clip: float,
    decay: float,
    nonfinite: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """As the op Twml>OnlineStandardize in inference; training needs the op library.

    Raises:
        NotImplementedError: `training` is not known to be False.
    """
    del decay
    always = tf.get_static_value(training)
    if always is None or always:
        raise NotImplementedError("online_standardize trains with the op library only")
    if nonfinite == "error":
        ids = check.require(ids, check.none_bad(values, tf.math.is_inf))
    rows = tf.raw_ops.ResourceGather(resource=moments, indices=ids, dtype=tf.float64)
    count, mean, m2 = tf.unstack(rows, axis=1)
    known = tf.math.is_finite(values) & (count > 0)
    wide = tf.where(known, tf.cast(values, tf.float64), 0.0)
    variance = tf.where(count > 0, m2, 0.0) / tf.where(count > 0, count, 1.0)
    sd = tf.maximum(tf.sqrt(tf.maximum(variance, 0.0)), epsilon)
    z = tf.where(known, (wide - mean) / sd, 0.0)
    inside = known & (tf.abs(z) <= clip)
    scale = tf.cast(tf.where(inside, 1 / sd, 0.0), tf.float32)
    y = tf.cast(tf.clip_by_value(z, -clip, clip), tf.float32)
    if bias:
        unique_ids, places = unique(ids)
        found = tf.raw_ops.ResourceGather(resource=bias[0], indices=unique_ids, dtype=tf.float32)
        y += tf.gather(found, places)
    return y, scale
