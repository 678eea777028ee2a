"""The boundaries of `adapt`, which on small data equal their definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops.layers import PercentileDiscretizer
from twml_ops.layers._discretizer import Boundaries


def fit(ids, values, num_bins, side="left", batches=1):
    layer = PercentileDiscretizer(num_bins, side=side)
    sketches = [layer.new_sketch() for _ in range(batches)]
    for sketch, part in zip(sketches, np.array_split(np.arange(len(ids)), batches), strict=True):
        sketch.update(np.asarray(ids, np.int64)[part], np.asarray(values, np.float32)[part])
    layer.adapt_from_sketch(*sketches)
    return Boundaries(*(v.numpy() for v in layer.state_variables))


def reference(values, num_bins, side):
    """The boundaries of one feature, one quantile at a time."""
    values = np.sort(np.asarray(values, np.float32)[~np.isnan(values)])
    distinct = np.unique(values)
    if len(distinct) <= num_bins:
        cuts = list(distinct[:-1])
    else:
        wanted = [-(-i * len(values) // num_bins) for i in range(1, num_bins)]
        cuts = [x for x in np.unique([values[n - 1] for n in wanted]) if x != values[-1]]
    if side == "right":
        cuts = [distinct[np.searchsorted(distinct, x) + 1] for x in cuts]
    return np.array(cuts, np.float32)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([-5, 0, 3, 1 << 60]), st.integers(-4, 4) | st.just(np.nan))),
    st.integers(1, 6),
    st.sampled_from(["left", "right"]),
    st.integers(1, 3),
)
def test_equals_one_quantile_at_a_time(entries, num_bins, side, batches):
    ids = np.array([i for i, _ in entries], np.int64)
    values = np.array([v for _, v in entries], np.float32)
    got = fit(ids, values, num_bins, side, batches)
    np.testing.assert_array_equal(got.feature_ids, np.unique(ids))
    assert got.splits.dtype == np.int64
    assert len(got.splits) == len(got.feature_ids) + 1
    assert got.splits[-1] == len(got.boundaries)
    for f, feature in enumerate(got.feature_ids):
        np.testing.assert_array_equal(
            got.boundaries[got.splits[f] : got.splits[f + 1]],
            reference(values[ids == feature], num_bins, side),
        )


@pytest.mark.parametrize("side", ["left", "right"])
def test_quantile_bins_of_distinct_values_hold_equal_shares(side):
    values = np.random.default_rng(0).permutation(1000)
    got = fit(np.zeros(1000), values, 8, side)
    counts = np.bincount(np.searchsorted(got.boundaries, values, side))
    np.testing.assert_array_equal(counts, np.full(8, 125))


@pytest.mark.parametrize("side", ["left", "right"])
def test_few_distinct_values_get_a_bin_each(side):
    values = [5, 1, 1, 1, 1, 1, 1, 1, 3, np.inf]
    got = fit(np.zeros(10), values, 4, side)
    np.testing.assert_array_equal(
        np.searchsorted(got.boundaries, [1, 3, 5, np.inf], side), range(4)
    )


def test_no_bin_is_empty_and_no_boundary_repeated_however_skewed():
    rng = np.random.default_rng(1)
    values = np.floor(np.exp(rng.normal(size=5000) * 2))
    for side in ("left", "right"):
        for num_bins in (2, 3, 10, 50):
            got = fit(np.zeros(5000), values, num_bins, side).boundaries
            assert np.all(np.diff(got) > 0)
            counts = np.bincount(np.searchsorted(got, values, side), minlength=len(got) + 1)
            assert counts.min() > 0
            assert len(counts) <= num_bins


def test_num_bins_by_feature_restricts_adapt_to_these_features():
    ids, values = np.repeat([1, 2, 3], 10), np.tile(np.arange(10), 3)
    got = fit(ids, values, {1: 2, 3: 5, 4: 7})
    np.testing.assert_array_equal(got.feature_ids, [1, 3])
    np.testing.assert_array_equal(np.diff(got.splits), [1, 4])


def test_no_data_gives_no_features():
    got = fit([], [], 4)
    assert len(got.feature_ids) == len(got.boundaries) == 0
    np.testing.assert_array_equal(got.splits, [0])
