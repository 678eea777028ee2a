"""`ops.rows_to_int8` against a slow and simple NumPy reference."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops

MAX = np.finfo(np.float32).max
EDGES = np.float32(
    [
        [0, 0, 0, 0],
        [-0.0, 0, 0, 0],
        [1, -1, 0.5, 127],
        [0.5, 1.5, 2.5, 127],  # in the middle of two codes
        [1e-45, -1e-40, 1e-38, 0],
        [2.0**-101, 0, 0, 0],
        [2.0**-100, -(2.0**-101), 1e-40, 0],
        [MAX, -MAX, MAX / 3, 1],
        [3e38, -1e-30, 1e-45, 0],
        [np.inf, 1, 0, -np.inf],
        [np.nan, 1, 0, 2],
        [np.inf, np.nan, -np.inf, 0],
    ]
)


def reference(row):
    """The scale, the codes and the decoded row, in double precision."""
    largest = np.abs(row).max(initial=0)
    if not np.isfinite(largest):
        codes = np.where(np.isinf(row), np.sign(row), 0)
        return largest, codes, np.where(np.isinf(row) & ~np.isnan(largest), row, np.nan)
    if largest < 2.0**-100:
        return 0, np.zeros_like(row), np.zeros_like(row)
    scale = (largest / np.float32(127)).view(np.uint32) & ~np.uint32(127)
    scale = np.float32(scale.view(np.float32))
    codes = np.rint((row / scale).astype(np.float32))
    return scale, codes, scale * codes


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (40, 1), (9, 17), (300, 128), EDGES])
def test_rows_are_encoded_as_the_reference_does(shape):
    if isinstance(shape, tuple):
        rng = np.random.default_rng(0)
        rows = rng.normal(size=shape) * 10.0 ** rng.integers(-25, 25, [shape[0], 1])
        rows = (rows * (rng.random(shape) < 0.9)).astype(np.float32)
    else:
        rows = shape
    codes, scales = ops.rows_to_int8(rows)
    decoded = np.asarray(ops.rows_from_int8(codes, scales))
    assert (codes.dtype, scales.dtype, codes.shape) == (tf.int8, tf.float32, rows.shape)
    for row, code, scale, back in zip(rows, codes.numpy(), scales.numpy(), decoded, strict=True):
        want_scale, want_codes, want = reference(row)
        np.testing.assert_array_equal(scale, np.float32(want_scale))
        np.testing.assert_array_equal(code, want_codes)
        np.testing.assert_array_equal(back, want)
        if np.isfinite(row).all():
            error = np.abs(row.astype(np.float64) - back).max(initial=0)
            assert error <= max(0.50001 * float(scale), 2.0**-100)


def test_what_was_decoded_is_encoded_without_a_loss():
    rows = np.random.default_rng(2).normal(size=(50, 20)).astype(np.float32)
    decoded = ops.rows_from_int8(*ops.rows_to_int8(rows))
    np.testing.assert_array_equal(ops.rows_from_int8(*ops.rows_to_int8(decoded)), decoded)


def test_rounding_at_random_differs_by_less_than_the_scale_and_not_on_average():
    rows = np.float32([[127, 0.3, -0.3, 0, 126.9, -127], [1e-3, -1e-5, 3e-6, 0, 1e-6, 0]])
    found = []
    for seed in range(2000):
        codes, scales = ops.rows_to_int8(rows, seed=seed, stream=7)
        found.append(ops.rows_from_int8(codes, scales).numpy())
        assert (np.abs(found[-1] - rows) < scales.numpy()[:, np.newaxis] * 1.001).all()
    scales = scales.numpy()[:, np.newaxis]
    np.testing.assert_array_less(np.abs(np.mean(found, 0) - rows) / scales, 0.05)
    assert (np.asarray(found)[:, rows == 0] == 0).all()
    np.testing.assert_array_equal(ops.rows_to_int8(rows, seed=3, stream=7)[0], (found[3] / scales))
    wide = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    codes = [ops.rows_to_int8(wide, seed, stream)[0] for seed, stream in ((3, 7), (4, 7), (3, 8))]
    assert all((codes[0].numpy() != other.numpy()).any() for other in codes[1:])
    assert (codes[0].numpy()[0] != ops.rows_to_int8(wide[[0, 0]], 3, 7)[0].numpy()[1]).any()


def test_edges_at_random_are_the_edges():
    decoded = [
        np.asarray(ops.rows_from_int8(*ops.rows_to_int8(EDGES, seed=seed))) for seed in (None, 5)
    ]
    scales = ops.rows_to_int8(EDGES)[1].numpy()[:, np.newaxis]
    for finite in (np.isfinite, np.isnan):
        np.testing.assert_array_equal(finite(decoded[0]), finite(decoded[1]))
    near = np.isfinite(EDGES).all(axis=1)
    assert (np.abs(decoded[0][near] / 2 - decoded[1][near] / 2) <= scales[near] * 0.501).all()


def test_the_bits_are_the_recorded_ones():
    rows = np.random.default_rng(4).normal(size=(3, 5)).astype(np.float32)
    codes, _ = ops.rows_to_int8(rows, seed=11, stream=2**33 + 1)
    recorded = [-50, -14, 127, 50, -126, 0, -49, 12, -127, 19, 19, 127, 25, 41, -120]
    np.testing.assert_array_equal(codes.numpy().ravel(), recorded)


def test_bad_input_is_named():
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="rank|rows"):
        ops.rows_to_int8(np.zeros(3, np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="an item for each of the 2 rows"):
        ops.rows_from_int8(np.zeros((2, 3), np.int8), np.zeros(3, np.float32))
