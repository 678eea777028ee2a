"""`hash_ids`: hashing of integers into an id space of 2^bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library
from twml_ops.ops.stock import hash as stock_hash


def hash_ids(ids: Any, bits: int, salt: int = 0) -> tf.Tensor:
    """Hashes integers into [0, 2^bits).

    The hash is the upper `bits` bits of item `id` of the SplitMix64 stream with the seed `salt`
    (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators"). Before the
    reduction it is a bijection of 64 bits for each salt, so distinct ids collide no more often than
    random ones. It is the same on every machine and in every release.

    Args:
        ids: int32 or int64 of any shape, any values. Equal integers have equal hashes in both
            types.
        bits: Size of the id space, 1 to 62.
        salt: int64. Ids hashed with different salts collide independently, so give each categorical
            column its own.

    Returns:
        int64 of the shape of `ids`.

    Raises:
        tf.errors.InvalidArgumentError: `bits` is out of range.
    """
    ids = tf.convert_to_tensor(ids, dtype_hint=tf.int64)
    return library.twml_hash_ids(ids, bits=bits, salt=salt)


def hash_keys(keys: Any, bits: int, salt: int = 0) -> tf.Tensor:
    """`hash_ids` of integers that are no entries of a batch, of which -1 is padding for XLA.

    Args:
        keys: See `hash_ids`.
        bits: See `hash_ids`.
        salt: See `hash_ids`.

    Returns:
        See `hash_ids`.
    """
    if library.uses_static_shapes:
        return stock_hash.hash_ids(tf.convert_to_tensor(keys, dtype_hint=tf.int64), bits, salt)
    return hash_ids(keys, bits, salt)


tf.no_gradient("Twml>HashIds")
