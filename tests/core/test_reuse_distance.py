"""Reuse distances against LRU caches that are simulated, and the laws of the counts."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core


def simulated_hits(ids, size):
    """The hits of an LRU cache, one access after the other."""
    cache, hits = OrderedDict(), 0
    for i in ids:
        if i in cache:
            hits += 1
            cache.move_to_end(i)
        elif size:
            if len(cache) == size:
                cache.popitem(last=False)
            cache[i] = None
    return hits


def simulated_distances(ids):
    """The distance of each access whose id occurred before."""
    last, found = {}, []
    for now, i in enumerate(ids):
        if i in last:
            found.append(len(set(ids[last[i] + 1 : now])))
        last[i] = now
    return found


def distances_of(ids, **options):
    distances = core.ReuseDistances(**options)
    distances.add(np.asarray(ids, np.int64))
    return distances


def zipf_ids(count, rows, exponent, seed=1):
    rng = np.random.default_rng(seed)
    share = np.arange(1, rows + 1) ** -exponent
    cumulative = np.cumsum(share / share.sum())
    ranks = np.minimum(np.searchsorted(cumulative, rng.random(count)), rows - 1)
    return rng.permutation(rows)[ranks]


@given(st.lists(st.integers(-3, 40), max_size=300), st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_hits_are_those_of_a_simulated_cache(ids, cut):
    whole = distances_of(ids)
    parts = core.ReuseDistances()
    parts.add(np.asarray(ids[: cut % 300], np.int64))
    parts.add(np.asarray(ids[cut % 300 :], np.int64))
    sizes = np.arange(-1, 50)
    want = [simulated_hits(ids, max(size, 0)) for size in sizes]
    assert whole.hits(sizes).tolist() == want
    assert parts.hits(sizes).tolist() == want
    assert whole.accesses == len(ids)
    assert whole.distinct_ids == len(set(ids))
    assert whole.sampled_one_in == 1


@given(st.lists(st.integers(0, 30), max_size=200), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_quantiles_are_those_of_the_distances(ids, share):
    found = sorted(simulated_distances(ids))
    got = distances_of(ids).quantile(share)
    if not found:
        assert got == -1
    else:
        assert got == found[max(0, int(np.ceil(share * len(found))) - 1)]


def test_long_sequences_are_exact():
    """The times of last accesses are renumbered many times."""
    ids = zipf_ids(30_000, 700, 0.8)
    sizes = np.array([1, 5, 64, 300, 699, 700, 10_000])
    want = [simulated_hits(ids.tolist(), size) for size in sizes]
    assert distances_of(ids).hits(sizes).tolist() == want


@pytest.mark.parametrize("ids", [[2**63 - 1, -(2**63), 2**63 - 1], [7] * 1000, []])
def test_extreme_ids(ids):
    distances = distances_of(ids)
    assert distances.hits([2]).tolist() == [simulated_hits(ids, 2)]
    assert distances.distinct_ids == len(set(ids))


@pytest.mark.parametrize("exponent", [0.6, 0.9, 1.1])
def test_a_sample_of_the_ids_predicts_hit_rates_within_two_percent(exponent):
    ids = zipf_ids(400_000, 100_000, exponent)
    sampled = distances_of(ids, max_ids=8192)
    assert sampled.sampled_one_in > 1
    exact = distances_of(ids, max_ids=1 << 20)
    assert exact.sampled_one_in == 1
    sizes = np.array([100, 1000, 3000, 10_000, 30_000, 100_000])
    error = (sampled.hits(sizes) - exact.hits(sizes)) / len(ids)
    assert np.abs(error).max() < 0.02
    assert sampled.distinct_ids == pytest.approx(exact.distinct_ids, rel=0.05)
    assert sampled.quantile(0.5) == pytest.approx(exact.quantile(0.5), rel=0.2, abs=200)


def test_the_sample_depends_on_the_sequence_only():
    ids = zipf_ids(50_000, 20_000, 0.8)
    whole, parts = distances_of(ids, max_ids=1000), core.ReuseDistances(1000)
    for part in np.array_split(ids, 37):
        parts.add(part)
    sizes = 2 ** np.arange(15)
    assert whole.hits(sizes).tolist() == parts.hits(sizes).tolist()
    assert whole.sampled_one_in == parts.sampled_one_in
    hits = whole.hits(sizes)
    assert (np.diff(hits) >= 0).all()
    assert 0 <= hits[0] <= hits[-1] <= len(ids)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: core.ReuseDistances(63), r"max_ids must be in \[64, 1073741824\], got 63"),
        (lambda: core.ReuseDistances().quantile(1.5), r"share must be in \[0, 1\], got 1.5"),
        (lambda: core.ReuseDistances().quantile(np.nan), r"share must be in \[0, 1\], got nan"),
        (lambda: core.ReuseDistances().add([[1]]), "ids must have 1 dimensions, got 2"),
        (lambda: core.ReuseDistances().add([0.5]), "ids must be an array of integers"),
        (lambda: core.ReuseDistances().hits([[1]]), "sizes must have 1 dimensions, got 2"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
