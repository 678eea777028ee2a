"""cc/core/find_keys.h, cc/core/gather_dot.h and cc/core/field_rows.h in stock ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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


def field_rows(
    ids: tf.Tensor, num_rows: Sequence[int], first_row: int = 0, pooled: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>FieldRows; it needs no gradient."""
    ids, sizes = tf.cast(ids, tf.int64), np.array(num_rows, np.int64)
    starts = tf.constant(first_row + np.cumsum(sizes) - sizes)
    buckets = 1 + tf.math.floormod(ids, tf.constant(sizes - 1))
    rows = tf.reshape(starts + tf.where(ids < 0, tf.zeros_like(ids), buckets), [-1])
    row_splits = tf.range(
        0, tf.size(rows, tf.int64) + 1, len(sizes) if pooled else 1, dtype=tf.int64
    )
    return rows, row_splits
