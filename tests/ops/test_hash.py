import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, ops

EDGES = np.array([0, 1, -1, 2, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)], np.int64)


def mix64(x: int) -> int:
    """The published finalizer on Python's integers."""
    mask = (1 << 64) - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


def hash_pair(a: int, b: int) -> int:
    step, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    return mix64((mix64((a + step) & mask) + step * b) & mask)


@pytest.mark.parametrize("bits", [1, 2, 31, 32, 33, 62])
@pytest.mark.parametrize("salt", [0, 1, -1, 1 << 40])
def test_equals_the_published_formula(bits, salt):
    expected = [hash_pair(salt, int(i)) >> (64 - bits) for i in EDGES]
    np.testing.assert_array_equal(ops.hash_ids(EDGES, bits, salt), expected)
    np.testing.assert_array_equal(core.hash_ids(EDGES, bits, salt), expected)


def test_int32_and_int64_hash_equally_and_keep_their_shape():
    ids = np.arange(-6, 6).reshape(3, 4)
    wide = ops.hash_ids(tf.constant(ids, tf.int64), 20)
    np.testing.assert_array_equal(ops.hash_ids(tf.constant(ids, tf.int32), 20), wide)
    np.testing.assert_array_equal(core.hash_ids(ids, 20), wide)
    assert wide.shape == (3, 4)
    assert wide.dtype == tf.int64
    assert ops.hash_ids(np.zeros((0, 2), np.int64), 5).shape == (0, 2)
    assert ops.hash_ids(np.int64(7), 5).shape == ()


def test_each_input_bit_flips_half_of_the_output_bits():
    ids = np.random.default_rng(0).integers(-(1 << 63), (1 << 63) - 1, 1000)
    for bit in range(64):
        flipped = ids ^ np.int64(-(1 << 63) if bit == 63 else 1 << bit)
        changed = core.hash_ids(ids, 62) ^ core.hash_ids(flipped, 62)
        per_bit = ((changed[:, None] >> np.arange(62)) & 1).mean(0)
        assert per_bit.min() > 0.4, bit
        assert per_bit.max() < 0.6, bit


def test_consecutive_ids_collide_no_more_than_random_ones():
    n, bits = 1 << 16, 20
    distinct = len(np.unique(core.hash_ids(np.arange(n), bits)))
    expected = 2**bits * (1 - np.exp(-n / 2**bits))
    assert abs(distinct - expected) < 5 * np.sqrt(n - expected)


@pytest.mark.parametrize("bits", [0, -1, 63, 64])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"bits must be in \[1, 62\], got {bits}"
    ):
        ops.hash_ids([1], bits)
    with pytest.raises(ValueError, match=r"bits must be in \[1, 62\]"):
        core.hash_ids(np.array([1]), bits)


def test_runs_in_a_function_of_unknown_shape():
    hashed = tf.function(
        lambda i: ops.hash_ids(i, 30), input_signature=[tf.TensorSpec(None, tf.int64)]
    )
    np.testing.assert_array_equal(hashed(tf.constant(EDGES)), core.hash_ids(EDGES, 30))
