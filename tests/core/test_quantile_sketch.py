import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops.core import QuantileSketch

N = 100_000
RNG = np.random.default_rng(0)
STREAMS = {
    "sorted": np.arange(N),
    "reversed": np.arange(N)[::-1],
    "constant": np.full(N, -3),
    "normal": RNG.normal(size=N),
    "heavy-tailed": RNG.standard_cauchy(N) ** 3,
    "zipf": np.minimum(RNG.zipf(1.2, N), 10**6),
    "zoom in": np.where(np.arange(N) % 2, 2 * N - np.arange(N), np.arange(N)),
    "infinite": np.where(RNG.random(N) < 0.3, np.inf, RNG.normal(size=N)),
}


def sketch_of(values, ids=None, **kwargs):
    sketch = QuantileSketch(**kwargs)
    sketch.update(np.zeros(len(values), np.int64) if ids is None else ids, values.astype("f"))
    return sketch


def rank_errors(sketch, values):
    values = np.sort(values.astype("f"))
    at = np.unique(values)
    exact = np.searchsorted(values, at, "right")
    return np.abs(sketch.ranks(np.zeros(len(at), np.int64), at) - exact)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("epsilon", [0.05, 0.001])
def test_ranks_are_within_epsilon(name, epsilon):
    values = STREAMS[name]
    sketch = sketch_of(values, epsilon=epsilon)
    assert rank_errors(sketch, values).max() <= epsilon * N
    assert sketch.describe([0])["rank_error"][0] <= epsilon * N
    assert sketch.describe([0])["weight"][0] == N


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=400),
    st.integers(1, 50),
    st.sampled_from([0.01, 0.2]),
)
def test_ranks_of_any_floats_are_within_epsilon(some, repeats, epsilon):
    values = np.tile(np.array(some, "f"), repeats)
    sketch = sketch_of(values, epsilon=epsilon, exact_values=0)
    there = values[~np.isnan(values)]
    described = sketch.describe([0])
    assert described["weight"][0] == len(there)
    assert described["missing"][0] == len(values) - len(there)
    if len(there):
        assert rank_errors(sketch, there).max() <= epsilon * len(there)
        low, high = sketch.quantiles([0], [0, 1])[0]
        assert (low, high) == (there.min(), there.max())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-9, 9)), max_size=2000), st.integers(1, 4)
)
def test_few_distinct_values_are_exact_for_any_parts(entries, parts):
    ids = np.array([i for i, _ in entries], np.int64)
    values = np.array([v for _, v in entries], "f")
    merged = QuantileSketch(epsilon=0.2, exact_values=19)
    for part in np.array_split(np.arange(len(ids)), parts):
        merged.merge(sketch_of(values[part], ids[part], epsilon=0.2, exact_values=19))
    np.testing.assert_array_equal(merged.feature_ids, np.unique(ids))
    for feature in np.unique(ids):
        got = merged.values(feature)
        for g, e in zip(got, np.unique(values[ids == feature], return_counts=True), strict=True):
            np.testing.assert_array_equal(g, e)


def test_four_pickled_parts_merged_are_within_epsilon_of_the_whole():
    rng = np.random.default_rng(1)
    ids, values = rng.integers(0, 5, 4 * N), rng.normal(size=4 * N).astype("f")
    parts = [sketch_of(values[p::4], ids[p::4], epsilon=0.01) for p in range(4)]
    parts = pickle.loads(pickle.dumps(parts))
    for part in parts[1:]:
        parts[0].merge(part)
    for feature in range(5):
        exact = np.sort(values[ids == feature])
        ranks = parts[0].ranks(np.full(len(exact), feature), exact)
        assert np.abs(ranks - np.arange(1, len(exact) + 1)).max() <= 0.01 * len(exact)


@pytest.mark.parametrize("weighted", [False, True])
def test_results_are_bit_identical_for_any_threads_and_batches(weighted):
    rng = np.random.default_rng(2)
    ids, values = rng.integers(0, 300, N) << 40, rng.normal(size=N).astype("f")
    weights = rng.exponential(size=N).astype("f") if weighted else None
    states = []
    for threads, parts in [(1, 1), (2, 1), (7, 13)]:
        sketch = QuantileSketch(epsilon=0.1, exact_values=4, weighted=weighted)
        for part in np.array_split(np.arange(N), parts):
            w = None if weights is None else weights[part]
            sketch.update(ids[part], values[part], w, num_threads=threads)
        states.append(sketch.state())
    for state in states[1:]:
        for key, array in states[0].items():
            np.testing.assert_array_equal(array, state[key], err_msg=key)


def test_a_sketch_restored_from_its_state_continues_identically():
    values = STREAMS["normal"]
    sketch = sketch_of(values, np.arange(N) % 7, epsilon=0.05)
    again = QuantileSketch.from_state(sketch.state())
    for s in (sketch, again):
        s.update(np.arange(N) % 9, values[::-1].astype("f"))
    for key, array in sketch.state().items():
        np.testing.assert_array_equal(array, again.state()[key])
    assert (again.epsilon, again.exact_values, again.weighted) == (0.05, 256, False)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_state_may_be_written_and_read_in_parts(weighted):
    rng = np.random.default_rng(4)
    ids, values = rng.integers(-5, 5, N) << 40, rng.normal(size=N).astype("f")
    sketch = QuantileSketch(epsilon=0.05, exact_values=4, weighted=weighted)
    sketch.update(ids, values, rng.random(N).astype("f") if weighted else None)
    parts = [sketch.state(first, first + 3) for first in range(0, 12, 3)]
    assert [len(p["feature_ids"]) for p in parts] == [3, 3, 3, 1]
    again = QuantileSketch.from_states(iter(parts))
    for s in (sketch, again):
        s.update(ids[::-1], values)
    for key, array in sketch.state().items():
        np.testing.assert_array_equal(array, again.state()[key], err_msg=key)
    with pytest.raises(
        ValueError,
        match="other must not share features with this sketch, got feature -[0-9]* in both",
    ):
        QuantileSketch.from_states([parts[0], parts[1], parts[0]])
    with pytest.raises(ValueError, match="states must have at least one item"):
        QuantileSketch.from_states([])
    with pytest.raises(ValueError, match="other must have the epsilon"):
        QuantileSketch.from_states([parts[0], QuantileSketch().state()])


def test_memory_is_bounded():
    one = sketch_of(RNG.normal(size=10 * N))
    assert one.nbytes < 4 * 17 / one.epsilon
    many = sketch_of(RNG.integers(0, 2, 10 * N).astype("f"), np.arange(10 * N) % N)
    assert many.nbytes / N < 400


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.update([0.5], [1.0]), "ids must be an array of integers"),
        (
            lambda s: s.update([0], [1.0, 2.0]),
            r"values must have the shape of ids, \(1,\), got \(2,\)",
        ),
        (lambda s: s.update([0], [1.0], [1.0]), "weights must not be given"),
        (lambda s: s.merge(s), "other must be another sketch"),
        (lambda s: s.merge(QuantileSketch(0.5)), "other must have the epsilon"),
        (lambda s: s.quantiles([0], [1.5]), r"probabilities\[0\] = 1.5 is out of range \[0, 1\]"),
        (lambda s: s.boundaries([0], [0]), r"num_bins\[0\] = 0, expected at least 1"),
        (lambda s: s.boundaries([0], [1, 2]), "num_bins must have the shape of feature_ids"),
        (lambda s: s.boundaries([0], [1], "up"), "side must be one of 'left', 'right', got 'up'"),
        (lambda s: QuantileSketch(0.0), "epsilon must be in"),
        (lambda s: QuantileSketch(exact_values=-1), "exact_values must be in"),
    ],
)
def test_invalid_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call(QuantileSketch())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["sorted", "random"])
def test_ranks_of_a_hundred_million_values_are_within_epsilon(order):
    n, piece = 10**8, 10**6
    sketch, rng = QuantileSketch(), np.random.default_rng(3)
    for start in range(0, n, piece):
        values = np.arange(start, start + piece) if order == "sorted" else rng.random(piece) * n
        sketch.update(np.zeros(piece, np.int64), values.astype("f"))
    at = np.linspace(0, n, 10_001).astype("f")
    errors = np.abs(sketch.ranks(np.zeros(len(at), np.int64), at) - at)
    # 4 sqrt(n): the deviation of the random stream itself from the straight line
    assert errors.max() <= sketch.epsilon * n + (0 if order == "sorted" else 4 * np.sqrt(n)) + 8
