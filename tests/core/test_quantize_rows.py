"""Compares the quantization of rows with a slow and simple NumPy reference."""

import contextlib
import math
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core

BITS = (8, 4, 3, 2)
HEADER = struct.Struct("<IIqqq")


def float16(x, down):
    """The nearest float16 below or above."""
    h = np.float16(x)
    if down and h > x:
        h = np.nextafter(h, np.float16(-np.inf))
    if not down and h < x:
        h = np.nextafter(h, np.float16(np.inf))
    return h


def squares(row, offset, scale, levels):
    """The sum of squared errors, in the kernel's order, and the codes."""
    inverse = np.float32(1) / np.float32(scale)
    at = (row - np.float32(offset)) * inverse
    codes = np.floor(np.clip(at, np.float32(0), np.float32(levels)) + np.float32(0.5))
    error = row - (np.float32(offset) + np.float32(scale) * codes.astype(np.float32))
    padded = np.zeros(-(-len(row) // 16) * 16)
    padded[: len(row)] = error.astype(np.float64) ** 2
    lanes = np.zeros(16)
    for piece in padded.reshape(-1, 16):
        lanes += piece
    total = 0.0
    for lane in lanes:
        total += lane
    return total, codes.astype(int)


def cover(low, high, levels):
    offset = float16(low, down=True)
    scale = float16((np.float32(high) - np.float32(offset)) / np.float32(levels), down=False)
    return offset, max(scale, np.float16(2**-24))


def reference_row(row, bits, bins, ratio):
    """The row after quantization."""
    if not np.isfinite(row).all() or row.min() == row.max():
        return row
    levels = 2**bits - 1
    exponent = max(-126, math.frexp(float(np.abs(row).max()))[1] - 1)
    scaled = np.ldexp(row.astype(np.float64), -exponent).astype(np.float32)
    low, high = scaled.min(), scaled.max()
    size = high - low
    best = cover(low, high, levels)
    least, _ = squares(scaled, *best, levels)
    cut = [0, 0]
    for _ in range(int(np.float32(bins) * np.float32(ratio))):
        if sum(cut) + 1 >= bins:
            break
        found = []
        for side in (0, 1):
            ends = list(cut)
            ends[side] += 1
            share = [size * (np.float32(e) / np.float32(bins)) for e in ends]
            at_low = np.float32(float(low) + float(share[0]))
            at_high = np.float32(float(high) - float(share[1]))
            grid = cover(at_low, max(at_low, at_high), levels)
            found.append((squares(scaled, *grid, levels)[0], grid))
        side = 0 if found[0][0] < found[1][0] else 1
        cut[side] += 1
        if found[side][0] < least:
            least, best = found[side]
    offset, scale = best
    _, codes = squares(scaled, offset, scale, levels)
    points = np.float32(offset) + np.float32(scale) * codes.astype(np.float32)
    largest = np.finfo(np.float32).max
    wide = np.ldexp(points.astype(np.float64), exponent)
    return np.clip(wide, -largest, largest).astype(np.float32)


def reference(rows, bits, bins=32, ratio=0.5):
    out = np.empty_like(rows)
    for i, row in enumerate(rows):
        out[i] = reference_row(row, bits, bins, ratio) if len(row) else row
    return out


def round_trip(rows, **options):
    return core.dequantize_rows(core.quantize_rows(rows, **options))


def bound(rows, bits):
    """The promised root mean squared error of each row."""
    wide = rows.astype(np.float64)
    step = (wide.max(1) - wide.min(1)) / (2**bits - 1)
    return np.maximum(step, np.maximum(np.abs(wide).max(1), 2.0**-126) / 2048)


def error(rows, out):
    return np.sqrt(((rows.astype(np.float64) - out) ** 2).mean(1))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_rows_equal_the_reference(num_rows, dim, bits):
    rng = np.random.default_rng(dim)
    rows = (rng.normal(size=(num_rows, dim)) * 10.0 ** rng.integers(-9, 9, (num_rows, 1))).astype(
        np.float32
    )
    out = round_trip(rows, bits=bits)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, reference(rows, bits))


@pytest.mark.parametrize("options", [(0, 0.5), (1, 1.0), (7, 0.3), (45, 1.0), (200, 0.16)])
def test_the_search_is_that_of_the_reference(options):
    bins, ratio = options
    rows = np.random.default_rng(3).standard_t(3, size=(40, 24)).astype(np.float32)
    for bits in BITS:
        out = round_trip(rows, bits=bits, bins=bins, ratio=ratio)
        np.testing.assert_array_equal(out, reference(rows, bits, bins, ratio))


def test_the_search_reduces_the_error():
    rows = np.random.default_rng(4).standard_t(3, size=(200, 64)).astype(np.float32)
    for bits in (2, 3, 4):
        plain = error(rows, round_trip(rows, bits=bits, bins=0))
        searched = error(rows, round_trip(rows, bits=bits))
        assert (searched <= plain).all()
        assert searched.mean() < 0.95 * plain.mean()


def rows_of(items):
    return np.array(items, np.float32).reshape(1, -1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20),
    st.sampled_from(BITS),
    st.integers(0, 40),
)
def test_the_error_of_any_row_is_within_the_bound(items, bits, bins):
    rows = rows_of(items)
    out = round_trip(rows, bits=bits, bins=bins)
    if np.isfinite(rows).all():
        assert (error(rows, out) <= bound(rows, bits) * (1 + 1e-6)).all()
    else:
        np.testing.assert_array_equal(out, rows)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-2, 2, width=32),
    st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=20),
    st.integers(-30, 0),
    st.sampled_from(BITS),
)
def test_the_bound_holds_for_rows_whose_range_is_near_the_precision_of_the_offset(
    center, items, exponent, bits
):
    rows = np.float32(center) + rows_of(items) * np.float32(2.0**exponent)
    out = round_trip(rows, bits=bits)
    assert (error(rows, out) <= bound(rows, bits) * (1 + 1e-6)).all()


@pytest.mark.parametrize(
    "item", [0.0, 0.1, -3.3e38, 1e-45, 65504.0, 70000.0, np.pi, np.nan, np.inf, -np.inf]
)
@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_rows_of_one_number_are_exact(item, dim):
    rows = np.full((3, dim), item, np.float32)
    for bits in BITS:
        np.testing.assert_array_equal(round_trip(rows, bits=bits), rows)


def test_a_row_that_is_not_finite_is_exact_and_leaves_the_others_alone():
    rows = np.random.default_rng(5).normal(size=(300, 9)).astype(np.float32)
    plain = round_trip(rows, bits=4)
    odd = rows.copy()
    odd[[0, 63, 64, 299], [0, 8, 4, 2]] = [np.nan, np.inf, -np.inf, np.nan]
    out = round_trip(odd, bits=4)
    np.testing.assert_array_equal(out[[0, 63, 64, 299]], odd[[0, 63, 64, 299]])
    others = np.setdiff1d(np.arange(300), [0, 63, 64, 299])
    np.testing.assert_array_equal(out[others], plain[others])


@pytest.mark.parametrize("bits", BITS)
def test_a_row_takes_its_codes_and_five_bytes(bits):
    rows = np.random.default_rng(6).normal(size=(10, 33)).astype(np.float32)
    assert len(core.quantize_rows(rows, bits=bits)) == 32 + 10 * (5 + math.ceil(33 * bits / 8))


def test_a_second_quantization_of_the_whole_range_stays_within_its_step():
    rows = np.random.default_rng(7).normal(size=(50, 16)).astype(np.float32)
    once = round_trip(rows, bits=8, bins=0)
    twice = round_trip(once, bits=8, bins=0)
    assert (np.abs(once - twice) <= np.ptp(rows, axis=1, keepdims=True) / 255).all()


PRINT_BYTES = """
import hashlib, numpy as np
from twml_ops import core
rows = np.random.default_rng(8).standard_t(3, size=(1000, 37)).astype(np.float32)
rows[5, 5] = np.nan
made = [core.quantize_rows(rows, bits=b, num_threads=t) for b in (8, 4, 3, 2) for t in (1, 5)]
made += [core.dequantize_rows(m, num_threads=t) for m in made for t in (1, 5)]
print(core.simd_level(), hashlib.sha256(b"".join(m.tobytes() for m in made)).hexdigest())
"""


def test_bytes_are_the_same_at_every_simd_level_and_number_of_threads():
    found = {}
    for level in ("baseline", "avx2", "avx512"):
        environment = {**os.environ, "TWML_OPS_SIMD": level, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, "-c", PRINT_BYTES],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        used, digest = done.stdout.split()
        found[used] = digest
    assert len(set(found.values())) == 1, found
    rows = np.random.default_rng(9).normal(size=(1000, 37)).astype(np.float32)
    one, many = (core.quantize_rows(rows, bits=3, num_threads=t) for t in (1, 9))
    np.testing.assert_array_equal(one, many)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_refused_or_make_rows(noise, data):
    rows = np.arange(30, dtype=np.float32).reshape(6, 5)
    rows[2, 2] = np.nan
    good = core.quantize_rows(rows, bits=3).tobytes()
    at = data.draw(st.integers(0, len(good)))
    cut = data.draw(st.integers(0, len(good)))
    for raw in (noise, good[:at] + noise + good[cut:], good[:at] + noise):
        with contextlib.suppress(ValueError):
            assert core.dequantize_rows(np.frombuffer(raw, np.uint8)).ndim == 2


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40), min_size=3, max_size=3))
def test_any_sizes_in_the_header_are_refused_or_those_of_the_bytes(sizes):
    good = bytearray(core.quantize_rows(np.ones((2, 3), np.float32), bits=2).tobytes())
    magic, bits, *_ = HEADER.unpack_from(good)
    HEADER.pack_into(good, 0, magic, bits, *sizes)
    try:
        out = core.dequantize_rows(np.frombuffer(bytes(good), np.uint8))
    except ValueError:
        return
    assert sizes[2] == 0
    assert out.shape == tuple(sizes[:2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 5}, "bits must be 8, 4, 3 or 2, got 5"),
        ({"bits": 8, "bins": -1}, r"bins must be in \[0, 4096\], got -1"),
        ({"bits": 8, "ratio": 1.5}, r"ratio must be in \[0, 1\], got 1.5"),
    ],
)
def test_options_out_of_range_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        core.quantize_rows(np.ones((2, 2), np.float32), **options)
    with pytest.raises(ValueError, match="rows must have 2 dimensions, got 1"):
        core.quantize_rows(np.ones(2, np.float32), bits=8)
