"""cc/core/tree_sums.h in stock ops."""

from __future__ import annotations

import tensorflow as tf


def tree_sums(
    x: tf.Tensor,
    ensembles: tf.Tensor,
    features: tf.Tensor,
    thresholds: tf.Tensor,
    missing_left: tf.Tensor,
    children: tf.Tensor,
    values: tf.Tensor,
    roots: tf.Tensor,
    max_depth: int,
) -> tf.Tensor:
    """The op Twml>TreeSums; its sums differ in the last bits."""
    x, roots, children = map(tf.convert_to_tensor, (x, roots, children))
    every = tf.reshape(roots, [1, -1])
    every = tf.broadcast_to(every, [tf.shape(x)[0], tf.shape(every)[1]])
    # XLA compiles a branch with one static shape, which both branches have if B is known.
    known = tf.convert_to_tensor(ensembles).shape[0]
    all_of_them = tf.equal(tf.size(ensembles), 0) if known is None else tf.constant(known == 0)
    if known is None:
        nodes = tf.cond(all_of_them, lambda: every, lambda: tf.gather(roots, ensembles))
    else:
        nodes = every if known == 0 else tf.gather(roots, ensembles)
    below = tf.reshape(children, [-1])
    for _ in range(max_depth):
        number = tf.gather(x, tf.gather(features, nodes), batch_dims=1)
        left = number <= tf.gather(thresholds, nodes)
        left |= tf.math.is_nan(number) & (tf.gather(missing_left, nodes) > 0)
        nodes = tf.gather(below, 2 * nodes + tf.cast(~left, tf.int32))
    sums = tf.reduce_sum(tf.gather(values, nodes), axis=1)
    number_of = tf.cast(tf.maximum(tf.shape(roots)[0], 1), sums.dtype)
    return tf.where(all_of_them, sums / number_of, sums)
