"""bfloat16 tables in stock ops: rows are read as float32 and rounded when they are stored.

cc/core/simd/row_kernels.cc has the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops.ops.stock.hash import mix64


@tf.custom_gradient
def cast_to_float32(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """bfloat16 rows as float32, with a float32 gradient."""
    return tf.cast(rows, tf.float32), lambda gradient: gradient


def round_stochastically(rows: tf.Tensor, ids: tf.Tensor, seed: Any) -> tf.Tensor:
    """Rounds float32 rows [U, D] to bfloat16, up with the probability of the fraction cut off.

    The random bits are a hash (the finalizer of MurmurHash3) of seed, row id and column.
    """
    seed = tf.cast(tf.convert_to_tensor(seed, tf.int64), tf.uint64)
    of_row = mix64(seed + mix64(tf.cast(tf.cast(ids, tf.int64), tf.uint64)))
    column = tf.cast(tf.range(tf.shape(rows)[1]), tf.uint32)
    random = tf.cast(of_row, tf.uint32)[:, tf.newaxis] + column * _unsigned(0x9E3779B9)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        random = tf.bitwise.bitwise_xor(random, _shifted(random, shift)) * _unsigned(factor)
    bits = tf.bitcast(rows, tf.uint32)
    up = _shifted(bits + _shifted(random, 16), 16)
    nan = tf.bitwise.bitwise_or(_shifted(bits, 16), _unsigned(0x40))
    upper = tf.where(tf.math.is_nan(rows), nan, up)
    return tf.bitcast(tf.cast(upper, tf.uint16), tf.bfloat16)


def _unsigned(x: int) -> tf.Tensor:
    return tf.constant(x, tf.uint32)


def _shifted(x: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, _unsigned(by))
