"""The entries of a batch in CSR form, and the entries that belong to one shard of a table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

CsrEntries = tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]
"""A batch as (ids, values, row_splits): integer [K], float32 [K] or None if all values are 1, and
int64 [B + 1]. Example b has the entries row_splits[b] to row_splits[b + 1] - 1."""


def entries_of_shard(entries: CsrEntries, shard: Any, num_shards: int) -> CsrEntries:
    """Selects the entries of one shard, where shard s has the ids with id mod num_shards = s.

    Args:
        entries: The batch.
        shard: Number of the shard, an integer or a scalar tensor.
        num_shards: How many shards the table has.

    Returns:
        The selected entries, with ids that count the shard's own rows. With static shapes (see
        `ops.xla_compatible`) no entry is removed; the ids of the others are -1.
    """
    ids, values, row_splits = entries
    count = tf.cast(num_shards, ids.dtype)
    # floormod assigns a negative id to a shard too, whose kernel reports it as an error.
    selected = tf.equal(tf.math.floormod(ids, count), tf.cast(shard, ids.dtype))
    if library.uses_static_shapes:
        return tf.where(selected, tf.math.floordiv(ids, count), -1), values, row_splits
    before = tf.concat([[0], tf.cumsum(tf.cast(selected, tf.int64))], axis=0)
    values = None if values is None else tf.boolean_mask(values, selected)
    ids = tf.math.floordiv(tf.boolean_mask(ids, selected), count)
    return ids, values, tf.gather(before, row_splits)
