"""cc/core/dynamic_lookup.h in stock ops: inference only."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops.stock.hash import whole_hash_pair


def dynamic_lookup(
    ids: tf.Tensor,
    keys: tf.Tensor,
    last_used: tf.Tensor,
    counts: tf.Tensor,
    index: tf.Tensor,
    sketch: tf.Tensor,
    header: tf.Tensor,
    training: tf.Tensor,
    pinned: tf.Tensor,
    seed: int,
    **options: Any,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>DynamicLookup with `training` false; the state is handles of variables."""
    del last_used, counts, sketch, header, pinned, options
    if tf.get_static_value(training) is not False:
        raise NotImplementedError(
            "dynamic_lookup gives rows to new ids only with the op library, which is not loaded; "
            "stock TensorFlow ops look up known ids (training=False)"
        )
    ids = tf.convert_to_tensor(ids, tf.int64)
    known = tf.raw_ops.ReadVariableOp(resource=keys, dtype=tf.int64)
    table = tf.cast(tf.raw_ops.ReadVariableOp(resource=index, dtype=tf.int32), tf.int64)
    mask = tf.size(table, tf.int64) - 1
    hashed = whole_hash_pair(tf.constant(seed, tf.int64), ids)
    home = tf.cast(tf.bitwise.bitwise_and(hashed, tf.cast(mask, tf.uint64)), tf.int64)

    def probe(step: tf.Tensor, rows: tf.Tensor, open_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        row = tf.gather(table, tf.bitwise.bitwise_and(home + step, mask))
        match = (row >= 0) & (tf.gather(known, tf.maximum(row, 0)) == ids)
        rows = tf.where(open_ & match, row, rows)
        return step + 1, rows, open_ & ~match & (row != -1)

    _, rows, _ = tf.while_loop(
        lambda step, rows, open_: tf.reduce_any(open_) & (step <= mask),
        probe,
        (tf.constant(0, tf.int64), tf.zeros_like(ids), tf.fill(tf.shape(ids), True)),
    )
    return rows, tf.zeros([0], tf.int64)
