"""Operations on gradients that are dense or sparse: mapping, summing repeated ids, clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._tape import device_scope_of


def map_values(gradient: Any, fn: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Applies `fn` to a dense gradient, or to the rows of a sparse one.

    Args:
        gradient: `tf.Tensor`, `tf.IndexedSlices` or None, which is returned as it is.
        fn: keeps the shape.
    """
    if isinstance(gradient, tf.IndexedSlices):
        with device_scope_of(gradient.values):
            values = fn(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient if gradient is None else fn(gradient)


def sum_duplicates(gradient: Any) -> Any:
    """`gradient` with unique ids: the rows of repeated ids of a sparse one are summed."""
    if not isinstance(gradient, tf.IndexedSlices) or ops.is_sparse_linear_gradient(gradient):
        return gradient
    if gradient.values.dtype == tf.float32:
        ids, rows = ops.sum_duplicates(gradient.indices, gradient.values)
    else:  # The kernel has float32 only.
        ids, segments = tf.unique(gradient.indices)
        rows = tf.math.unsorted_segment_sum(gradient.values, segments, tf.size(ids))
    return tf.IndexedSlices(rows, ids, gradient.dense_shape)


def clip(
    gradients: Sequence[Any],
    clipnorm: float | None,
    clipvalue: float | None,
    global_clipnorm: float | None,
) -> list[Any]:
    """Clips gradients as Keras does, sparse ones by their summed rows.

    Rows without a gradient count as zeros.

    Args:
        gradients: dense, sparse or None.
        clipnorm: limit of each gradient's L2 norm.
        clipvalue: limit of each element's absolute value.
        global_clipnorm: limit of the L2 norm of all gradients together.
    """
    if not (clipnorm or clipvalue or global_clipnorm):
        return list(gradients)
    gradients = [sum_duplicates(g) for g in gradients]
    if clipnorm:
        return [map_values(g, lambda t: tf.clip_by_norm(t, clipnorm)) for g in gradients]
    if clipvalue:
        return [
            map_values(g, lambda t: tf.clip_by_value(t, -clipvalue, clipvalue)) for g in gradients
        ]
    dtypes = [g.dtype for g in gradients if g is not None]
    if len(set(dtypes)) < 2:
        clipped, _ = tf.clip_by_global_norm(gradients, global_clipnorm)
        return list(clipped)
    # TensorFlow's op takes one type only.
    wide = tf.float64 if tf.float64 in dtypes else tf.float32
    norm = tf.linalg.global_norm(
        [map_values(g, lambda t: tf.cast(t, wide)) for g in gradients if g is not None]
    )
    scale = global_clipnorm / tf.maximum(norm, tf.cast(global_clipnorm, wide))
    return [map_values(g, lambda t: t * tf.cast(scale, t.dtype)) for g in gradients]
