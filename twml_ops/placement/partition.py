"""The entries of a batch that name rows of one part of a table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

Entries = tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]  # ids [K], values [K] or None, row_splits


def part_of(entries: Entries, part: Any, parts: int) -> Entries:
    """Those with id mod `parts` = `part`, with ids counted in the part's own rows."""
    ids, values, row_splits = entries
    count = tf.cast(parts, ids.dtype)
    # floormod sends a negative id to a part too, where it is refused.
    mine = tf.equal(tf.math.floormod(ids, count), tf.cast(part, ids.dtype))
    if library.uses_static_shapes:
        return tf.where(mine, tf.math.floordiv(ids, count), -1), values, row_splits
    before = tf.concat([[0], tf.cumsum(tf.cast(mine, tf.int64))], axis=0)
    values = None if values is None else tf.boolean_mask(values, mine)
    ids = tf.math.floordiv(tf.boolean_mask(ids, mine), count)
    return ids, values, tf.gather(before, row_splits)
