"""Counting the features of a data set in one pass."""

import numpy as np
import pytest

from twml_ops.analysis import profiles
from twml_ops.analysis.profiles import Profile
from twml_ops.data import Schema
from twml_ops.data.block import Block, Categories, Rows

SCHEMA = Schema(("x", "y"), ("a", "b", "c"), 50, "label")


def tables(seed, n, shift=0.0):
    """Numbers [n, 2] with NaN for missing, tokens [n, 3] with -1, dense sparse values [n, 50]."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(shift, 1, (n, 2)).astype(np.float32)
    numbers[rng.random((n, 2)) < 0.2] = np.nan
    tokens = np.arange(3) * 1000 + rng.integers(0, 8, (n, 3))
    tokens[rng.random((n, 3)) < 0.1] = -1
    sparse = rng.random((n, 50)).astype(np.float32)
    sparse[rng.random((n, 50)) < 0.9] = np.nan
    return numbers, tokens, sparse


def profile_of(numbers, tokens, sparse, cuts=()):
    out = Profile(SCHEMA, [7, 3])
    groups = {
        "continuous": Rows.from_numbers(numbers),
        "categorical": Categories(tokens),
        "sparse": Rows.from_numbers(sparse),
    }
    whole = Block(np.zeros(len(numbers), np.float32), groups)
    for start, stop in zip((0, *cuts), (*cuts, len(whole)), strict=True):
        out.add(whole.slice(start, stop))
    return out


def test_counts_do_not_depend_on_how_examples_are_divided_into_blocks():
    numbers, tokens, sparse = tables(0, 400)
    for cuts in ((), (130, 131, 300)):
        p = profile_of(numbers, tokens, sparse, cuts)
        assert p.examples == 400
        assert [p.count("continuous", i) for i in range(2)] == list((numbers == numbers).sum(0))
        assert [p.count("categorical", i) for i in range(3)] == list((tokens >= 0).sum(0))
        assert p.count("sparse", 7) == (sparse[:, 7] == sparse[:, 7]).sum()


def test_histogram_of_numbers_has_equal_bins_in_the_reference_and_exact_counts_in_other_data():
    home, abroad = tables(1, 1000), tables(2, 700, shift=0.5)
    a, b = profile_of(*home), profile_of(*abroad)
    mine, theirs = a.histogram("continuous", 0, a, 10), b.histogram("continuous", 0, a, 10)
    assert len(mine.names) == len(mine.counts) == len(theirs.counts) == 11
    assert mine.counts.sum() == 1000
    assert theirs.counts.sum() == 700
    assert mine.counts[-1] == np.isnan(home[0][:, 0]).sum()
    assert np.ptp(mine.counts[:-1]) <= 2
    x = home[0][:, 0]
    edges = np.quantile(x[~np.isnan(x)], np.arange(1, 10) / 10, method="inverted_cdf")
    y = abroad[0][:, 0]
    want = np.bincount(np.searchsorted(edges, y[~np.isnan(y)], side="left"), minlength=10)
    np.testing.assert_array_equal(theirs.counts[:-1], want)


def test_histogram_of_categories_counts_the_most_frequent_ones_of_the_reference():
    home, abroad = tables(3, 600), tables(4, 500)
    a, b = profile_of(*home), profile_of(*abroad)
    got = b.histogram("categorical", 1, a, 4)
    ids, counts = np.unique(home[1][:, 1][home[1][:, 1] >= 0], return_counts=True)
    top = ids[np.argsort(-counts, kind="stable")[:4]]
    column = abroad[1][:, 1]
    want = [(column == i).sum() for i in top]
    rest = (column >= 0).sum() - sum(want)
    assert got.names == ["#1", "#2", "#3", "#4", "others", "missing"]
    np.testing.assert_array_equal(got.counts, [*want, rest, (column < 0).sum()])


def test_a_feature_without_values_is_missing_in_all_examples():
    empty = profile_of(
        *(np.full_like(t, np.nan if t.dtype.kind == "f" else -1) for t in tables(5, 9))
    )
    full = profile_of(*tables(5, 90))
    for group, feature in (("continuous", 0), ("categorical", 2), ("sparse", 3)):
        for like in (empty, full):
            counts = empty.histogram(group, feature, like, 5).counts
            assert counts[-1] == 9
            assert counts.sum() == 9
            assert full.histogram(group, feature, like, 5).counts.sum() == 90


def test_too_many_categories_are_pooled_and_still_present(monkeypatch):
    monkeypatch.setattr(profiles, "MAX_CATEGORIES", 20)
    numbers, tokens, sparse = tables(6, 500)
    p = profile_of(numbers, tokens, sparse, range(100, 500, 100))
    assert len(p._categories.ids) <= 20
    assert [p.count("categorical", i) for i in range(3)] == list((tokens >= 0).sum(0))
    for i in range(3):
        assert p.histogram("categorical", i, p, 4).counts.sum() == 500


def test_a_bag_counts_once_an_example_and_its_histogram_has_all_its_categories():
    schema = Schema((), ("a", "tags", "b"), 0, "label", bags=("tags",))
    table = np.array([[1, 9], [-1, 9], [2, -1], [1, 9]])
    tags = Rows.from_lengths(np.array([3, 0, 1, 1]), np.array([5, 6, 7, 6, 6]))
    p = Profile(schema)
    p.add(Block(np.zeros(4, np.float32), {"categorical": Categories(table, {1: tags})}))
    assert [p.count("categorical", i) for i in range(3)] == [3, 3, 3]
    assert p.coverage("categorical", 1) == 0.75
    found = p.histogram("categorical", 1, p, 2)
    assert found.names == ["#1", "#2", "others", "missing"]
    assert found.counts.tolist() == [3, 1, 1, 1]
    assert p.histogram("categorical", 2, p, 2).counts.tolist() == [3, 0, 1]


@pytest.mark.parametrize("group", ["continuous", "categorical", "sparse"])
def test_an_empty_profile_has_no_counts(group):
    p = Profile(SCHEMA, [3])
    assert p.count(group, 0) == 0
    assert p.histogram(group, 0, p, 5).counts.sum() == 0
