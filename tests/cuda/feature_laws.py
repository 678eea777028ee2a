"""Laws of the kernels that normalize and discretize features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.cuda.cases import pairwise
from tests.cuda.interface import NO_ERRORS, Csr
from tests.cuda.law import BATTERY, Lab, law, same


@law(BATTERY)
def features_are_normalized_and_discretized(lab: Lab) -> None:
    """With bad splits of the boundaries as well."""
    values = np.array([1, -3, 2, 5], np.float32)
    batch = Csr(np.array([0, 0, 2, 0]), values, np.array([0, 2, 4]))
    state = np.array([4, 1, 8], np.float32)
    for decay, want in ((1.0, [5, 1, 8]), (0.5, [5, 1, 4])):
        options = {"epsilon": 1e-6, "decay": decay, "training": True, "nonfinite": 0}
        result = lab.cuda.max_norm(batch, state, None, **options)
        np.testing.assert_array_equal(result.arrays[2], want)
        np.testing.assert_array_equal(result.arrays[0], values / result.arrays[2][batch.ids])
    features, boundaries = np.array([0, 2]), np.array([0, 2, 1], np.float32)
    result = lab.cuda.discretize(batch, features, boundaries, np.array([0, 2, 3]), bits=4)
    same(result.arrays, [[1, 0, 5, 2], np.ones(4), batch.row_splits])
    bad = lab.cuda.discretize(batch, features, boundaries, np.array([0, 2**40, 3]), bits=4)
    assert bad.errors[5] > 0, bad.errors


@law(
    training=(False, True),
    decay=(1.0, 0.9),
    bias=(False, True),
    wide_ids=(False, True),
)
def max_norm_gives_the_bits_of_the_cpu(
    lab: Lab, training: bool, decay: float, bias: bool, wide_ids: bool
) -> None:
    random = np.random.default_rng(5)
    n, rows = lab.size(700, 700_000), 50
    ids = random.integers(0, rows, n).astype(np.int64 if wide_ids else np.int32)
    values = (random.normal(size=n) * 10.0 ** random.integers(-8, 3, n)).astype(np.float32)
    special = [np.inf, np.nan, -np.inf, 0, 1e-45]
    values[::50] = np.resize(special, len(values[::50]))
    state = random.uniform(0, 1, rows).astype(np.float32)
    shift = random.normal(size=rows).astype(np.float32) if bias else None
    options = {"training": training, "epsilon": 1e-6, "decay": decay}
    result = lab.cuda.max_norm(Csr(ids, values, None), state, shift, nonfinite=1, **options)
    assert (result.code, result.errors) == (0, NO_ERRORS)
    same(result.arrays, lab.core.max_norm(ids, values, state, shift, **options))


@law()
def max_norm_reports_bad_ids_and_values(lab: Lab) -> None:
    batch = Csr(np.array([0, 5, -1, 1]), np.array([1, 2, 3, np.nan], np.float32), None)
    options = {"epsilon": 1e-6, "decay": 0.5, "training": True, "nonfinite": 0}
    result = lab.cuda.max_norm(batch, np.array([4, 4], np.float32), None, **options)
    assert result.errors == (2, 1, 0, 1, 0, 0)
    np.testing.assert_array_equal(result.arrays[0], [0.5, 0, 0, 0])
    np.testing.assert_array_equal(result.arrays[2], [2, 4])


DISCRETIZATIONS = {
    "side": (0, 1),
    "missing": (0, 1),
    "unknown": (0, 1),
    "keep_inputs": (False, True),
    "hashing": (False, True),
    "weighted": (True, False),
    "wide_ids": (True, False),
}


def discretizations() -> Iterator[tuple[int, ...]]:
    for options in pairwise(DISCRETIZATIONS):
        yield tuple(int(o) for o in options.values())


@law(options=tuple(discretizations()))
def discretize_gives_the_result_of_the_cpu(lab: Lab, options: tuple[int, ...]) -> None:
    named = dict(zip(DISCRETIZATIONS, options, strict=True))
    random = np.random.default_rng(6)
    features = np.array([2, 3, 7, 11, 400])
    sizes = np.array([0, 1, 15, 40, 3])
    splits = np.concatenate([[0], np.cumsum(sizes)])
    boundaries = np.concatenate([np.sort(random.integers(-9, 9, s)) for s in sizes]).astype("f4")
    lengths = random.integers(0, 40, lab.size(12, 50_000))
    n = int(lengths.sum())
    values = random.integers(-10, 10, n).astype(np.float32)
    values[::9] = np.nan
    values[1::31] = np.inf
    values[2::31] = -np.inf
    weighted, wide_ids = named.pop("weighted"), named.pop("wide_ids")
    ids = random.choice([*features, 1, 5, 999], n).astype(np.int64 if wide_ids else np.int32)
    batch = Csr(ids, values if weighted else None, np.concatenate([[0], np.cumsum(lengths)]))
    result = lab.cuda.discretize(batch, features, boundaries, splits, bits=12, **named)
    assert (result.code, result.errors) == (0, NO_ERRORS)
    want = lab.core.discretize(batch, features, boundaries, splits, bits=12, **named)
    same(result.arrays, want)


@law()
def discretize_reports_unknown_features(lab: Lab) -> None:
    batch = Csr(np.array([1, 2, 3]), np.array([0, 0, 0], np.float32), np.array([0, 3]))
    features, boundaries, splits = np.array([2]), np.array([1], np.float32), np.array([0, 1])
    result = lab.cuda.discretize(batch, features, boundaries, splits, unknown=2, bits=4)
    assert result.errors == (*NO_ERRORS[:4], 2, 0)
    assert len(result.arrays[0]) == 3


@law(
    splits=((0, 9, 3), (0, -2, 3), (2, 1, 3), (0, 2**40, 3), (0, 2, 4)),
    hashing=(False, True),
)
def features_with_bad_splits_have_no_boundaries(lab: Lab, splits: Any, hashing: bool) -> None:
    batch = Csr(np.array([1, 2, 1]), np.array([0, 5, 9], np.float32), np.array([0, 3]))
    boundaries, features = np.array([1, 2, 3], np.float32), np.array([1, 2])
    result = lab.cuda.discretize(
        batch, features, boundaries, np.array(splits), hashing=hashing, bits=4
    )
    assert result.errors[:5] == NO_ERRORS[:5]
    assert result.errors[5] > 0
    assert len(result.arrays[0]) == 3
    assert ((result.arrays[0] >= 0) & (result.arrays[0] < 16)).all()
