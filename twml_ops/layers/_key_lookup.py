"""Where keys are in the sorted keys of a layer's state."""

from __future__ import annotations

import tensorflow as tf


def find_keys(known: tf.Tensor, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds keys by binary search.

    Args:
        known: int64 [U], strictly ascending, U at least 1 when it runs.
        keys: int64 of any shape.

    Returns:
        (positions, found), both of the shape of `keys`: int32 in [0, U), and whether `known` has
        the key there.
    """
    flat = tf.reshape(keys, [-1])
    positions = tf.minimum(tf.searchsorted(known, flat), tf.maximum(tf.size(known) - 1, 0))
    found = tf.gather(known, positions) == flat
    shape = tf.shape(keys)
    return tf.reshape(positions, shape), tf.reshape(found, shape)
