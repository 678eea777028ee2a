"""The entries of a batch that name rows of one part of a table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

CsrEntries = tuple[
    tf.Tensor, tf.Tensor | None, tf.Tensor
]  # ids [K], values [K] or None, row_splits


def entries_of_shard(entries: CsrEntries, shard: Any, num_shards: int) -> CsrEntries:
    """Those with id mod `num_shards` = `shard`, with ids counted in the shard's own rows."""
    ids, values, row_splits = entries
    count = tf.cast(num_shards, ids.dtype)
    # floormod sends a negative id to a part too, where it is refused.
    mine = tf.equal(tf.math.floormod(ids, count), tf.cast(shard, ids.dtype))
    if library.uses_static_shapes:
        return tf.where(mine, tf.math.floordiv(ids, count), -1), values, row_splits
    before = tf.concat([[0], tf.cumsum(tf.cast(mine, tf.int64))], axis=0)
    values = None if values is None else tf.boolean_mask(values, mine)
    ids = tf.math.floordiv(tf.boolean_mask(ids, mine), count)
    return ids, values, tf.gather(before, row_splits)
