"""cc/core/hash.h in stock ops, with wrapping unsigned arithmetic."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import check

_STEP = 0x9E3779B97F4A7C15


def _unsigned(x: int) -> tf.Tensor:
    return tf.constant(x, tf.uint64)


def mix64(x: tf.Tensor) -> tf.Tensor:
    """The finalizer of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = _fold(x, shift) * _unsigned(factor)
    return _fold(x, 31)


def _fold(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _unsigned(shift)))


def whole_hash_pair(a: Any, b: Any) -> tf.Tensor:
    """HashPair(a, b), uint64, for int64 a and b that broadcast together."""
    a, b = tf.cast(a, tf.uint64), tf.cast(b, tf.uint64)
    return mix64(mix64(a + _unsigned(_STEP)) + _unsigned(_STEP) * b)


def hash_pair(a: Any, b: Any, bits: int) -> tf.Tensor:
    """The upper `bits` bits of HashPair(a, b), int64, for int64 a and b that broadcast together."""
    hashed = whole_hash_pair(a, b)
    return tf.cast(tf.bitwise.right_shift(hashed, _unsigned(64 - bits)), tf.int64)


def hash_ids(ids: tf.Tensor, bits: int, salt: int = 0) -> tf.Tensor:
    """The op Twml>HashIds."""
    check.bits("bits", bits)
    return hash_pair(tf.constant(salt, tf.int64), tf.cast(ids, tf.int64), bits)
