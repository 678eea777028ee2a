"""`hash_ids`: any integers into an id space of 2^bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library


def hash_ids(ids: Any, bits: int, salt: int = 0) -> tf.Tensor:
    """Hashes integers into [0, 2^bits).

    The upper `bits` bits of item `id` of the SplitMix64 stream that `salt` seeds (Steele, Lea,
    Flood, OOPSLA 2014): for each salt a bijection of 64 bits before the reduction, so distinct ids
    collide no more often than random ones. The same on every machine and in every release.

    Args:
        ids: int32 or int64, any shape and any value; equal integers hash alike in both types.
        bits: size of the id space, 1 to 62.
        salt: int64; ids hashed with different salts collide independently. Give each column of
            categories its own.

    Returns:
        int64 of the shape of `ids`.

    Raises:
        tf.errors.InvalidArgumentError: `bits` out of its range.
    """
    ids = tf.convert_to_tensor(ids, dtype_hint=tf.int64)
    return library.twml_hash_ids(ids, bits=bits, salt=salt)


tf.no_gradient("Twml>HashIds")
