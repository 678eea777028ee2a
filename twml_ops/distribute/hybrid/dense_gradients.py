"""Gradients of dense weights: sent in one message, added up, or in one tensor for each type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid.messages import Link


def pack(gradients: Sequence[Any]) -> list[Any]:
    """Concatenates dense gradients.

    Args:
        gradients: Tensors with known shapes, or `tf.IndexedSlices`.

    Returns:
        One tensor of one dimension for each type, then the `tf.IndexedSlices` unchanged.
    """
    by_type = _by_type(gradients)
    flat = [tf.concat([tf.reshape(g, [-1]) for g in group], axis=0) for group in by_type.values()]
    return [*flat, *(g for g in gradients if isinstance(g, tf.IndexedSlices))]


def unpack(packed: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Splits what `pack` has returned.

    Args:
        packed: The result of `pack`, or a sum of several.
        like: The argument of `pack`, or gradients of the same types and shapes.

    Returns:
        The gradients.
    """
    by_type = _by_type(like)
    parts = {}
    for (dtype, group), flat in zip(by_type.items(), packed, strict=False):
        sizes = [g.shape.num_elements() for g in group]
        parts[dtype] = iter(tf.split(flat, sizes))
    slices = iter(packed[len(by_type) :])
    return [
        next(slices)
        if isinstance(g, tf.IndexedSlices)
        else tf.reshape(next(parts[g.dtype]), g.shape)
        for g in like
    ]


def send(gradients: Sequence[Any], link: Link) -> list[Any]:
    """Sends gradients to a server in one message.

    Args:
        gradients: Tensors with known shapes, or `tf.IndexedSlices`.
        link: The way to the server.

    Returns:
        The gradients on the server.
    """
    parts = [part for g in gradients for part in tensors_of(g)]
    sent = iter(link.to_server(parts) if parts else [])
    with tf.device(link.server):
        return [from_tensors(sent, g) for g in gradients]


def tensors_of(gradient: Any) -> list[tf.Tensor]:
    """The tensors of which a gradient consists: itself, or values and indices."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [gradient]


def from_tensors(tensors: Iterator[tf.Tensor], like: Any) -> Any:
    """Returns a gradient that consists of the next tensors, which have one dimension.

    Args:
        tensors: The results of `tensors_of`, for one gradient or several.
        like: A gradient of the same type and shape.
    """
    if not isinstance(like, tf.IndexedSlices):
        return tf.reshape(next(tensors), like.shape)
    values = tf.reshape(next(tensors), [-1, *like.values.shape[1:]])
    return tf.IndexedSlices(values, next(tensors), _constant(like.dense_shape))


def _constant(shape: tf.Tensor | None) -> tf.Tensor | None:
    """A shape as a constant, which every device can have without a message, if it is known."""
    known = None if shape is None else tf.get_static_value(shape)
    return shape if known is None else tf.constant(known)


def add(gradients: Sequence[Any]) -> Any:
    """Adds gradients of one variable.

    Args:
        gradients: At least one: tensors, or `tf.IndexedSlices`, or None if there is no gradient.

    Returns:
        The sum; a single gradient is returned as it is.
    """
    first = gradients[0]
    if first is None or len(gradients) == 1:
        return first
    if isinstance(first, tf.IndexedSlices):
        values = tf.concat([g.values for g in gradients], axis=0)
        indices = tf.concat([g.indices for g in gradients], axis=0)
        return tf.IndexedSlices(values, indices, first.dense_shape)
    return tf.add_n(list(gradients))


def weighted_sum(gradients: Sequence[Any], shares: Sequence[tf.Tensor]) -> Any:
    """Adds gradients of one variable that are multiplied by numbers.

    Args:
        gradients: At least one: tensors or `tf.IndexedSlices`.
        shares: A scalar for each.

    Returns:
        The sum.
    """
    return add([_scaled(g, share) for g, share in zip(gradients, shares, strict=True)])


def _scaled(gradient: Any, share: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * share, gradient.indices, gradient.dense_shape)
    return gradient * share


def _by_type(gradients: Sequence[Any]) -> dict[tf.DType, list[tf.Tensor]]:
    found: dict[tf.DType, list[tf.Tensor]] = {}
    for gradient in gradients:
        if not isinstance(gradient, tf.IndexedSlices):
            found.setdefault(gradient.dtype, []).append(gradient)
    return found
