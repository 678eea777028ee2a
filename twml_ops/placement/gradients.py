"""The sparse gradient of all replicas together, from each replica's own."""

from __future__ import annotations

import tensorflow as tf

from twml_ops import ops
from twml_ops.placement import collectives

_FLOAT, _LENGTH = 4, 8  # bytes


def reduce_gradient(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The sum of the replicas' gradients of one table, of which no replica sends a row twice.

    A gradient that comes untouched from `sparse_linear` is not computed before it travels: its
    entries and the gradient of its outputs do, (ids, values, dY), or, where that is less, the
    summed rows of the touched ids. Both say the same as a product of a sparse batch with a matrix,
    so what arrives is one such product again, of the joined batch, which an optimizer of this
    package fuses with the update. Any other gradient travels as (ids, summed rows).

    Args:
        gradient: of this replica; ids may repeat.

    Returns:
        That of all replicas; ids may repeat. Every replica gets the same, bit for bit.
    """
    if collectives.num_replicas() == 1:
        return gradient
    source = ops.sparse_linear_gradient_inputs(gradient)
    if source is None:
        pair = gradient.indices, gradient.values
        if gradient.values.dtype == tf.float32:
            pair = ops.sum_duplicates(*pair)
        joined_ids, joined_rows = (
            tf.concat(t, axis=0) for t in collectives.gather_per_replica(pair)
        )
        return tf.IndexedSlices(joined_rows, joined_ids, gradient.dense_shape)
    ids, values, row_splits, grad, binary, after = source
    shape = gradient.dense_shape
    with tf.control_dependencies(after):
        grad = tf.identity(grad)  # everything below is made of it

    def rows() -> tuple[tf.Tensor, ...]:
        """The rows as a batch: each an example of one entry, of value 1."""
        own = ops.weights_grad(ids, values, row_splits, grad, shape, binary)
        count = tf.size(own.indices)
        ones = tf.zeros([0]) if binary else tf.ones([count])
        return own.indices, ones, tf.ones([count], tf.int64), own.values

    def entries() -> tuple[tf.Tensor, ...]:
        return ids, values, row_splits[1:] - row_splits[:-1], grad

    travelling = tf.cond(rows_are_smaller(ids, binary, grad, shape[0]), rows, entries)
    for t, like in zip(travelling, entries(), strict=True):
        t.set_shape([None, *like.shape[1:]])
    ids, values, lengths, grad = (
        tf.concat(t, axis=0) for t in collectives.gather_per_replica(travelling)
    )
    row_splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], axis=0)
    return ops.weights_grad(ids, values, row_splits, grad, shape, binary)


def rows_are_smaller(
    ids: tf.Tensor, binary: bool, grad: tf.Tensor, num_rows: tf.Tensor
) -> tf.Tensor:
    """Whether the distinct rows that `ids` [K] name are fewer bytes than the entries and `grad`.

    They are counted only where that is open: not if all rows of the table would be less, nor if the
    first ids alone are too many.

    Args:
        ids: integer [K].
        binary: whether entries have no values.
        grad: float32 [B, D], what travels with entries.
        num_rows: int64 scalar, N.
    """
    size = tf.size(ids, out_type=tf.int64)
    shape = tf.shape(grad, out_type=tf.int64)
    value = 0 if binary else _FLOAT
    example = _LENGTH + _FLOAT * shape[1]
    as_entries = size * (ids.dtype.size + value) + shape[0] * example
    limit = as_entries // (ids.dtype.size + value + example)  # a row is an example of one entry

    def few(some: tf.Tensor) -> tf.Tensor:
        return tf.size(tf.unique(some).y, out_type=tf.int64) < limit

    return tf.cond(
        tf.minimum(num_rows, size) < limit,
        lambda: True,
        lambda: tf.cond(few(ids[: 4 * limit]), lambda: few(ids), lambda: False),
    )
