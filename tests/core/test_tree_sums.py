"""`core.tree_sums` against a slow and simple NumPy reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core


def random_trees(rng, ensembles, trees, depth, columns):
    """Random trees; some leaves are above the largest depth."""
    rows, roots = [(0, np.float32(0), True, 0, 0, np.float32(0))], []

    def grow(left_depth):
        index = len(rows)
        rows.append((0, np.float32(0), True, index, index, np.float32(rng.normal())))
        if left_depth and rng.random() < 0.8:
            left, right = grow(left_depth - 1), grow(left_depth - 1)
            threshold = np.float32(rng.choice([-1, 0, 0.5, 1e-42, np.inf, rng.normal()]))
            column, missing = rng.integers(columns), bool(rng.integers(2))
            rows[index] = (column, threshold, missing, left, right, np.float32(0))
        return index

    for _ in range(ensembles):
        roots.append([grow(depth) for _ in range(trees)])
    feature, threshold, missing, left, right, value = zip(*rows, strict=True)
    return {
        "features": np.array(feature, np.int32),
        "thresholds": np.array(threshold, np.float32),
        "missing_left": np.array(missing, np.uint8),
        "children": np.array([left, right], np.int32).T.copy(),
        "values": np.array(value, np.float32),
        "roots": np.array(roots, np.int32).reshape(ensembles, trees),
    }


def reference(x, ensembles, nodes, max_depth):
    sums = []
    for b, row in enumerate(x):
        roots = nodes["roots"][ensembles[b]] if len(ensembles) else nodes["roots"].ravel()
        total = np.float32(0)
        for node in roots:
            for _ in range(max_depth):
                number = row[nodes["features"][node]]
                left = number <= nodes["thresholds"][node]
                if np.isnan(number):
                    left = nodes["missing_left"][node]
                node = nodes["children"][node, 0 if left else 1]
            total += nodes["values"][node]
        if not len(ensembles):
            total *= np.float32(1) / np.float32(len(nodes["roots"]))
        sums.append(total)
    return np.array(sums, np.float32)


def numbers(rng, rows, columns):
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    special = np.float32([0, -0.0, 0.5, 1e-42, -1e-42, np.inf, -np.inf, np.nan])
    return np.where(rng.random(x.shape) < 0.3, rng.choice(special, x.shape), x)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    rows=st.sampled_from([0, 1, 3, 64, 65, 200]),
    ensembles=st.integers(1, 3),
    trees=st.integers(0, 4),
    depth=st.integers(0, 7),  # trees of few and of many leaves
    own=st.booleans(),
)
def test_sums_are_those_of_the_reference(seed, rows, ensembles, trees, depth, own):
    rng = np.random.default_rng(seed)
    nodes = random_trees(rng, ensembles, trees, depth, columns=3)
    x = numbers(rng, rows, 3)
    chosen = rng.integers(0, ensembles, rows if own else 0)
    got = core.tree_sums(x, chosen, **nodes, max_depth=depth)
    np.testing.assert_array_equal(got, reference(x, chosen, nodes, depth))


def test_the_number_of_threads_does_not_change_a_bit():
    rng = np.random.default_rng(0)
    nodes, x = random_trees(rng, 2, 30, 6, 5), numbers(rng, 3000, 5)
    chosen = rng.integers(0, 2, 3000)
    for ensembles in (chosen, chosen[:0]):
        one = core.tree_sums(x, ensembles, **nodes, max_depth=6, num_threads=1)
        for threads in (2, 5):
            many = core.tree_sums(x, ensembles, **nodes, max_depth=6, num_threads=threads)
            np.testing.assert_array_equal(many, one)


def test_a_path_ends_after_max_depth_steps():
    circle = {
        "features": [0, 0],
        "thresholds": np.float32([0, 0]),
        "missing_left": [1, 1],
        "children": [[1, 1], [0, 0]],
        "values": np.float32([3, 4]),
        "roots": [[0]],
    }
    for depth in (0, 1, 2, 1023, 1024):
        for rows in (1, 64, 65):
            got = core.tree_sums(np.zeros((rows, 1), np.float32), [], **circle, max_depth=depth)
            np.testing.assert_array_equal(got, np.full(rows, 3 + depth % 2))


def test_sums_of_a_row_do_not_depend_on_the_rows_beside_it():
    rng = np.random.default_rng(1)
    nodes, x = random_trees(rng, 3, 20, 7, 5), numbers(rng, 300, 5)
    together = core.tree_sums(x, [], **nodes, max_depth=7)
    alone = [core.tree_sums(x[i : i + 1], [], **nodes, max_depth=7)[0] for i in range(len(x))]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": [0, 3]}, r"features\[1\] = 3 is out of range \[0, 3\)"),
        ({"features": [0, -1]}, r"features\[1\] = -1 is out of range"),
        ({"children": [[0, 0], [1, 2]]}, r"children\[3\] = 2 is out of range \[0, 2\)"),
        ({"children": [[0, 0, 1]]}, "children must have 4 items, 2 for each of the nodes, got 3"),
        ({"roots": [[0, 5]]}, r"roots\[1\] = 5 is out of range \[0, 2\)"),
        ({"roots": [0, 1]}, "roots must have 2 dimensions, got 1"),
        ({"values": np.float32([1])}, "values must have 2 items"),
        ({"thresholds": np.float32([1])}, "thresholds must have 2 items"),
        ({"missing_left": [1]}, "missing_left must have 2 items"),
        ({"ensembles": [0, 1, 0]}, "ensembles must have no items or one for each of the 2 rows"),
        ({"ensembles": [0, 1]}, r"ensembles\[1\] = 1 is out of range \[0, 1\)"),
        ({"max_depth": 1025}, r"max_depth must be in \[0, 1024\], got 1025"),
        ({"max_depth": -1}, r"max_depth must be in \[0, 1024\], got -1"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {
        "x": np.zeros((2, 3), np.float32),
        "ensembles": [],
        "features": [0, 1],
        "thresholds": np.float32([0, 0]),
        "missing_left": [1, 0],
        "children": [[0, 0], [1, 1]],
        "values": np.float32([1, 2]),
        "roots": [[0, 1]],
        "max_depth": 3,
    }
    assert core.tree_sums(**arguments).tolist() == [3, 3]
    with pytest.raises(ValueError, match=message):
        core.tree_sums(**arguments | change)
