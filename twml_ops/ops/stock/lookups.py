"""cc/core/find_keys.h and cc/core/gather_dot.h in stock ops."""

from __future__ import annotations

import tensorflow as tf

from twml_ops.ops.stock.sparse_linear import searchsorted


def find_keys(known: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """The op Twml>FindKeys."""
    known, keys = tf.convert_to_tensor(known, tf.int64), tf.convert_to_tensor(keys, tf.int64)
    flat = tf.reshape(keys, [-1])
    padded = tf.concat([known, tf.zeros([1], tf.int64)], axis=0)  # there is an item to gather
    positions = searchsorted(known, flat, "left")
    there = (tf.gather(padded, positions) == flat) & (positions < tf.size(known, tf.int64))
    found = tf.where(there, positions, tf.constant(-1, tf.int64))
    return tf.reshape(found, tf.shape(keys))


def gather_dot(table: tf.Tensor, positions: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """The op Twml>GatherDot; its sums differ in the last bits."""
    table, vectors = tf.convert_to_tensor(table), tf.convert_to_tensor(vectors)
    positions = tf.convert_to_tensor(positions, tf.int64)
    padded = tf.concat([tf.zeros([1, tf.shape(table)[1]], table.dtype), table], axis=0)
    rows = tf.gather(padded, positions + 1)  # [B, C, K]
    return tf.reduce_sum(rows * vectors[:, tf.newaxis, :], axis=2)
