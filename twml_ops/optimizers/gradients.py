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
    norm: tf.Tensor | None = None,
) -> list[Any]:
    """Clips gradients as Keras does, sparse ones by their summed rows.

    Rows without a gradient count as zeros.

    Args:
        gradients: dense, sparse or None.
        clipnorm: limit of each gradient's L2 norm.
        clipvalue: limit of each element's absolute value.
        global_clipnorm: limit of the L2 norm of all gradients together.
        norm: scalar, the norm that is compared with the limit of a norm, if `gradients` are not all
            gradients that have it; None: it is computed from them.
    """
    if not (clipnorm or clipvalue or global_clipnorm):
        return list(gradients)
    if norm is not None and not clipvalue:
        return _scale_to(gradients, norm, clipnorm or global_clipnorm)
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
    return _scale_to(gradients, norm, global_clipnorm)


def half_squared_norm(gradient: Any) -> tf.Tensor:
    """Half of the squared L2 norm of a gradient, as `tf.nn.l2_loss` computes it.

    Args:
        gradient: dense, or sparse with unique ids (`sum_duplicates`).

    Returns:
        float32 scalar.
    """
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.nn.l2_loss(tf.cast(values, tf.float32))


def _scale_to(gradients: Sequence[Any], norm: tf.Tensor, limit: Any) -> list[Any]:
    """Scales gradients of the L2 norm `norm` so that it is `limit` at most."""
    scale = limit / tf.maximum(norm, tf.cast(limit, norm.dtype))
    return [map_values(g, lambda t: t * tf.cast(scale, t.dtype)) for g in gradients]
