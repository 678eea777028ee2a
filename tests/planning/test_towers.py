"""The division of fields into towers, against planted groups and all divisions of few fields."""

import itertools
import math

import numpy as np
import pytest

from twml_ops.planning import mean_vectors, partition_fields

pytestmark = pytest.mark.one_tf


def planted(seed, groups, fields, noise=0.5, width=16):
    """Vectors of any sign and length along a direction of each group, costs, and the groups.

    The fields of each group have the costs 1 together, in any order of the fields.
    """
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(groups), fields))
    directions = rng.normal(size=(groups, width))
    x = directions[group] + noise * rng.normal(size=(len(group), width))
    x *= rng.choice([-1, 1], len(group))[:, None] * rng.lognormal(size=len(group))[:, None]
    costs = rng.uniform(0.5, 1.5, len(group))
    return x, costs / np.bincount(group, costs)[group], group


def labels(partition):
    found = np.empty(sum(map(len, partition.fields)), int)
    for tower, fields in enumerate(partition.fields):
        found[list(fields)] = tower
    return found


def cosines(x):
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    unit = np.divide(x, norms, where=norms > 0, out=np.zeros_like(x))
    return np.abs(unit @ unit.T)


def within(x, tower_of):
    """The sum of the cosines of all pairs in the same tower."""
    same = tower_of[:, None] == tower_of
    return float(cosines(x)[np.triu(same, 1)].sum())


def rand_index(a, b):
    """The adjusted Rand index (Hubert and Arabie, 1985) by its definition over pairs."""

    def pairs(sizes):
        return sum(math.comb(int(n), 2) for n in np.ravel(sizes))

    table = np.zeros((a.max() + 1, b.max() + 1), int)
    np.add.at(table, (a, b), 1)
    both, first, second = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    expected = first * second / math.comb(len(a), 2)
    return (both - expected) / ((first + second) / 2 - expected)


def power_law(seed, fields=30):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(fields, 5)), rng.permutation(1.0 / np.arange(1, fields + 1))


@pytest.mark.parametrize("by_cost", [False, True])
@pytest.mark.parametrize(("groups", "fields"), [(2, 6), (4, 7), (8, 5), (3, 13)])
def test_planted_groups_are_found_again(groups, fields, by_cost):
    for seed in range(5):
        x, costs, group = planted(seed, groups, fields)
        found = partition_fields(x, groups, costs if by_cost else None)
        assert rand_index(labels(found), group) >= 0.9, seed


def test_among_hundreds_of_fields_nothing_planted_is_better_than_what_is_found():
    for seed in range(1):
        x, _, group = planted(seed, groups=16, fields=25)
        found = partition_fields(x, 16)
        assert within(x, labels(found)) >= within(x, group)
        assert rand_index(labels(found), group) >= 0.9
        assert found.within > 3 * found.between


def test_diverse_towers_have_the_same_number_of_fields_of_each_group():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        group = rng.permutation(np.repeat(np.arange(5), 8))
        x = np.eye(5)[group] + 0.05 * rng.normal(size=(40, 5))
        found = partition_fields(x, 4, strategy="diverse", imbalance=0)
        counts = np.zeros((4, 5), int)
        np.add.at(counts, (labels(found), group), 1)
        np.testing.assert_array_equal(counts, 2)
        assert found.within < found.between


@pytest.mark.parametrize("strategy", ["coherent", "diverse"])
def test_few_fields_are_divided_about_as_well_as_in_the_best_of_all_divisions(strategy):
    sign = 1 if strategy == "coherent" else -1
    for seed in range(12):
        rng = np.random.default_rng(seed)
        towers, count = (2, 8) if seed % 2 else (3, 7)
        x, costs = rng.normal(size=(count, 4)), rng.uniform(1, 3, count)
        found = partition_fields(x, towers, costs, strategy=strategy, imbalance=0.25)
        mean = costs.sum() / towers
        limit = max(max(found.costs), 1.25 * mean) * (1 + 1e-9)
        least = min(min(found.costs), 0.75 * mean) * (1 - 1e-9)
        best = -math.inf
        for division in itertools.product(range(towers), repeat=count):
            of = np.array(division)
            loads = np.bincount(of, costs, towers)
            if loads.min() >= least and loads.max() <= limit:
                best = max(best, sign * within(x, of))
        got = sign * within(x, labels(found))
        assert got >= best - 0.02 * abs(best), seed


@pytest.mark.parametrize("strategy", ["coherent", "diverse"])
@pytest.mark.parametrize("imbalance", [0.0, 0.1, 0.5])
def test_every_field_has_one_tower_and_the_costs_are_balanced_as_stated(strategy, imbalance):
    for seed in range(3):
        x, costs = power_law(seed)
        for towers in (1, 2, 7, 30):
            found = partition_fields(x, towers, costs, strategy=strategy, imbalance=imbalance)
            assert sorted(itertools.chain(*found.fields)) == list(range(30))
            assert len(found.fields) == towers
            assert all(found.fields)
            load = [0.0] * towers  # of the assignment by descending cost
            for cost in sorted(costs, reverse=True):
                load[load.index(min(load))] += cost
            limit = max((1 + imbalance) * costs.sum() / towers, max(load))
            assert max(found.costs) <= limit * (1 + 1e-8)
            least = min((1 - imbalance) * costs.sum() / towers, min(load))
            assert min(found.costs) >= least * (1 - 1e-8)
            sums = [costs[list(fields)].sum() for fields in found.fields]
            np.testing.assert_allclose(found.costs, sums)


def test_the_order_of_the_fields_does_not_matter():
    for seed in range(3):
        x, costs = power_law(seed)
        for of_field in (None, costs):
            want = partition_fields(x, 4, of_field)
            order = np.random.default_rng(seed).permutation(len(x))
            moved = partition_fields(x[order], 4, None if of_field is None else of_field[order])
            back = {frozenset(order[list(fields)].tolist()) for fields in moved.fields}
            assert back == {frozenset(fields) for fields in want.fields}
            assert moved.within == want.within


def test_towers_are_in_the_order_of_their_first_fields():
    found = partition_fields(power_law(0)[0], 5)
    assert [f[0] for f in found.fields] == sorted(f[0] for f in found.fields)
    assert all(list(f) == sorted(f) for f in found.fields)


def test_the_reported_cosines_are_the_means_over_pairs():
    x, _ = power_law(3)
    found = partition_fields(x, 6)
    same = labels(found)[:, None] == labels(found)
    pairs = np.triu(np.ones_like(same), 1)
    np.testing.assert_allclose(found.within, cosines(x)[same & pairs].mean())
    np.testing.assert_allclose(found.between, cosines(x)[~same & pairs].mean())
    assert math.isnan(partition_fields(x, 1).between)
    assert math.isnan(partition_fields(x, len(x)).within)


def test_fields_whose_vectors_are_zero_or_equal_are_divided_too():
    for x in (np.zeros((6, 3)), np.ones((6, 3))):
        assert [len(f) for f in partition_fields(x, 3, imbalance=0).fields] == [2, 2, 2]


def test_a_mean_vector_counts_each_row_as_often_as_it_occurs():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 3)).astype(np.float32) for n in (4, 9)]
    ids = [rng.integers(0, len(t) - 1, 50) for t in tables]  # the last rows never occur
    counts = [np.bincount(i, minlength=len(t)) for i, t in zip(ids, tables, strict=True)]
    want = [t[i].astype(np.float64).mean(axis=0) for i, t in zip(ids, tables, strict=True)]
    np.testing.assert_allclose(mean_vectors(tables, counts), want, rtol=1e-6)


X = np.ones((4, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition_fields(X[0], 2), r"vectors must be finite numbers \[F, D\], got .*\(2,"),
        (lambda: partition_fields(np.zeros((0, 2)), 1), r"vectors must be .* shape \(0, 2\)"),
        (lambda: partition_fields(X * np.nan, 2), "vectors must be finite"),
        (lambda: partition_fields(X, 0), "towers must be from 1 to the number of fields, 4, got 0"),
        (lambda: partition_fields(X, 5), "towers must be from 1 to the number of fields, 4, got 5"),
        (lambda: partition_fields(X, 2.0), "towers must be an integer, got 2.0"),
        (lambda: partition_fields(X, 2, [1, 2]), r"costs must be 4 positive numbers, got \[1, 2\]"),
        (lambda: partition_fields(X, 2, [1, 2, 0, 1]), "costs must be 4 positive numbers"),
        (lambda: partition_fields(X, 2, strategy="near"), "strategy must be one of coherent, div"),
        (lambda: partition_fields(X, 2, imbalance=-1), "imbalance must be finite and not neg"),
        (lambda: mean_vectors([], []), "counts must have an array for each of at least one table"),
        (lambda: mean_vectors([X], []), "got 0 for 1 tables"),
        (lambda: mean_vectors([X, X.T], [[1] * 4, [1] * 2]), r"tables\[1\] must be \[R, 2\]"),
        (lambda: mean_vectors([X[0]], [[1] * 2]), r"tables\[0\] must be \[R, 2\], got .*\(2,\)"),
        (lambda: mean_vectors([X], [[1] * 3]), r"counts\[0\] must be \[4\], got the shape \(3,\)"),
        (lambda: mean_vectors([X], [[0] * 4]), r"counts\[0\] must be .* not all zero"),
        (lambda: mean_vectors([X], [[1, 1, 1, -1]]), r"counts\[0\] must be finite, not negative"),
        (lambda: mean_vectors([X * np.inf], [[1] * 4]), r"tables\[0\] must be finite"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
