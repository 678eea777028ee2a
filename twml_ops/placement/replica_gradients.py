"""The sum of the replicas' sparse gradients of one table, in the form that takes fewer bytes."""

from __future__ import annotations

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._library import library
from twml_ops.placement import collectives

_FLOAT_BYTES, _LENGTH_BYTES = 4, 8


def reduce_gradient(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds up the replicas' gradients of one table. No replica sends a row twice.

    An unmodified gradient of `sparse_linear` is not computed before it is sent. Each replica sends
    what the gradient is computed from, (ids, values, dY), or, if that is smaller, the summed rows
    of its distinct ids. Both have the form of a sparse batch and a dense matrix, so the result is
    again the gradient of one `sparse_linear`, that of the concatenated batches, which an optimizer
    of this package fuses with the update. Any other gradient is sent as (ids, summed rows).

    Args:
        gradient: The gradient of this replica; ids may repeat.

    Returns:
        The sum over all replicas; ids may repeat. It has the same bits on every replica.
    """
    if collectives.num_replicas() == 1:
        return gradient
    with library.on_host():  # where the table is, and not on the device of the replica
        return _reduce_gradient(gradient)


def _reduce_gradient(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    source = ops.sparse_linear_gradient_inputs(gradient)
    if source is None:
        pair = gradient.indices, gradient.values
        if gradient.values.dtype == tf.float32:
            pair = ops.sum_duplicates(*pair)
        all_ids, all_rows = (tf.concat(t, axis=0) for t in collectives.gather_per_replica(pair))
        return tf.IndexedSlices(all_rows, all_ids, gradient.dense_shape)
    ids, values, row_splits, grad, binary, after = source
    shape = gradient.dense_shape
    with tf.control_dependencies(after):
        grad = tf.identity(grad)  # everything below depends on it

    def rows() -> tuple[tf.Tensor, ...]:
        """The summed rows as a batch: each is an example with one entry of value 1."""
        own = ops.weights_grad(ids, values, row_splits, grad, shape, binary)
        count = tf.size(own.indices)
        ones = tf.zeros([0]) if binary else tf.ones([count])
        return own.indices, ones, tf.ones([count], tf.int64), own.values

    def entries() -> tuple[tf.Tensor, ...]:
        return ids, values, row_splits[1:] - row_splits[:-1], grad

    sent = tf.cond(rows_are_smaller(ids, binary, grad, shape[0]), rows, entries)
    for t, like in zip(sent, entries(), strict=True):
        t.set_shape([None, *like.shape[1:]])
    ids, values, lengths, grad = (
        tf.concat(t, axis=0) for t in collectives.gather_per_replica(sent)
    )
    row_splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], axis=0)
    return ops.weights_grad(ids, values, row_splits, grad, shape, binary)


def rows_are_smaller(
    ids: tf.Tensor, binary: bool, grad: tf.Tensor, num_rows: tf.Tensor
) -> tf.Tensor:
    """Tells whether the summed rows of a gradient take fewer bytes than the entries and `grad`.

    The distinct ids are counted only if the answer depends on them: not if all rows of the table
    would be smaller, and not if the first ids alone have too many distinct ones.

    Args:
        ids: Integer [K], the ids of the batch.
        binary: Whether the entries have no values.
        grad: float32 [B, D], the gradient of the outputs, which is sent with the entries.
        num_rows: int64 scalar, N.

    Returns:
        A boolean scalar.
    """
    size = tf.size(ids, out_type=tf.int64)
    shape = tf.shape(grad, out_type=tf.int64)
    value_bytes = 0 if binary else _FLOAT_BYTES
    example_bytes = _LENGTH_BYTES + _FLOAT_BYTES * shape[1]
    entries_bytes = size * (ids.dtype.size + value_bytes) + shape[0] * example_bytes
    # A row is sent as an example with one entry.
    limit = entries_bytes // (ids.dtype.size + value_bytes + example_bytes)

    def has_few_distinct(some_ids: tf.Tensor) -> tf.Tensor:
        return tf.size(tf.unique(some_ids).y, out_type=tf.int64) < limit

    return tf.cond(
        tf.minimum(num_rows, size) < limit,
        lambda: True,
        lambda: tf.cond(
            has_few_distinct(ids[: 4 * limit]), lambda: has_few_distinct(ids), lambda: False
        ),
    )
