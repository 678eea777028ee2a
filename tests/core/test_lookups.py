"""`find_keys` and `gather_dot` against dictionaries and loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twml_ops import core

LOW, HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max
INT64 = st.integers(LOW, HIGH)


def positions_of(known, keys):
    where = {int(key): i for i, key in enumerate(known)}
    return np.array([where.get(int(k), -1) for k in np.ravel(keys)]).reshape(np.shape(keys))


def check_keys(known, keys, num_threads=0):
    known, keys = np.array(known, np.int64), np.array(keys, np.int64)
    found = core.find_keys(known, keys, num_threads=num_threads)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, positions_of(known, keys))


@given(st.sets(INT64, max_size=40), st.lists(INT64, max_size=40))
def test_positions_are_those_of_a_dictionary(known, others):
    known = sorted(known)
    near = [k + step for k in known for step in (-1, 0, 1) if LOW <= k + step <= HIGH]
    check_keys(known, [*near, *others, LOW, HIGH, 0])


@pytest.mark.parametrize("number", [0, 1, 2, 3, 100, 20_000])
@pytest.mark.parametrize("kind", ["hashes", "steps", "powers", "two clusters", "whole range"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_keys_of_every_distribution_are_found(number, kind, num_threads):
    rng = np.random.default_rng(number)
    known = {
        "hashes": lambda: core.hash_ids(np.arange(number), 62),
        "steps": lambda: 7 * np.arange(number) - 350,
        "powers": lambda: (1.002 ** np.arange(number)).astype(np.int64),
        "two clusters": lambda: np.concatenate([np.arange(number), HIGH - np.arange(number)]),
        "whole range": lambda: np.concatenate([rng.integers(LOW, HIGH, number), [LOW, HIGH]]),
    }[kind]()
    known = np.unique(np.asarray(known, np.int64))
    absent = rng.integers(-1000, 1000, 500)
    check_keys(known, np.concatenate([rng.permutation(known), absent, [LOW, HIGH]]), num_threads)


def test_the_shape_is_that_of_the_keys():
    for shape in [(), (0,), (2, 0, 3), (2, 3)]:
        assert core.find_keys([1, 2], np.ones(shape, np.int64)).shape == shape


@given(st.lists(INT64, max_size=30), st.lists(INT64, max_size=10))
def test_keys_that_are_not_sorted_give_positions_that_have_the_key(known, keys):
    found = core.find_keys(known, [*known, *keys])
    for key, position in zip([*known, *keys], found, strict=True):
        assert position == -1 or known[position] == key


def dot_reference(table, positions, vectors):
    out = np.zeros(positions.shape, np.float32)
    for b, c in np.ndindex(positions.shape):
        if positions[b, c] >= 0:
            for t, v in zip(table[positions[b, c]], vectors[b % len(vectors)], strict=True):
                out[b, c] += t * v
    return out


@pytest.mark.parametrize("rows", [0, 1, 2, 67])
@pytest.mark.parametrize("columns", [0, 1, 26])
@pytest.mark.parametrize("width", [0, 1, 5])
@pytest.mark.parametrize("one_vector", [False, True])
def test_products_are_summed_in_order(rows, columns, width, one_vector):
    rng = np.random.default_rng(rows + columns)
    table = rng.normal(size=(40, width)).astype(np.float32)
    positions = rng.integers(-1, 40, (rows, columns))
    vectors = rng.normal(size=(1 if one_vector else rows, width)).astype(np.float32)
    found = core.gather_dot(table, positions, vectors)
    np.testing.assert_array_equal(found, dot_reference(table, positions, vectors))
    for num_threads in (1, 3):
        again = core.gather_dot(table, positions, vectors, num_threads=num_threads)
        np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("bad", [-2, 4, LOW, HIGH])
def test_a_position_out_of_range_is_named(bad):
    table, vectors = np.ones((4, 2), np.float32), np.ones((3, 2), np.float32)
    positions = np.zeros((3, 2), np.int64)
    positions[1, 1] = positions[2, 0] = bad
    with pytest.raises(ValueError, match=rf"positions\[1, 1\] = {bad} .* \[-1, 4\)"):
        core.gather_dot(table, positions, vectors)


@pytest.mark.parametrize("shape", [(2, 2), (0, 2), (4, 2), (3, 3), (3, 0)])
def test_vectors_of_another_shape_are_refused(shape):
    table, positions = np.ones((4, 2), np.float32), np.zeros((3, 5), np.int64)
    with pytest.raises(ValueError, match="vectors must have"):
        core.gather_dot(table, positions, np.ones(shape, np.float32))
