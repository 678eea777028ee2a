"""`find_keys` and `gather_dot`: statistics of the categories of a batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library


def find_keys(known: Any, keys: Any) -> tf.Tensor:
    """Positions of keys in ascending keys.

    The search begins where evenly distributed keys would have a key (interpolation search, Perl,
    Itai and Avni, 1978), so it is fast for hashes, and logarithmic for all others.

    Args:
        known: int64 [U], strictly ascending; otherwise keys may not be found.
        keys: int64 of any shape.

    Returns:
        int64 of the shape of `keys`; -1 where `known` does not have the key.
    """
    return library.twml_find_keys(known, keys)


def gather_dot(table: Any, positions: Any, vectors: Any) -> tf.Tensor:
    """Dot products of rows of a table with a vector for each example. There is no gradient.

    Args:
        table: float32 [U, K].
        positions: int64 [B, C], in [-1, U).
        vectors: float32 [B, K], or [1, K] for one vector for all examples.

    Returns:
        float32 [B, C], the sums over k of `table[positions[b, c], k] * vectors[b, k]` in the order
        of k; 0 where the position is -1.

    Raises:
        tf.errors.InvalidArgumentError: a position is out of range, or shapes do not fit.
    """
    return library.twml_gather_dot(table, positions, vectors)


tf.no_gradient("Twml>FindKeys")
tf.no_gradient("Twml>GatherDot")
