"""The columns of categories are inferred from their order."""

import numpy as np
import pytest

from twml_ops.analysis.category_columns import KnownColumns, infer_columns


def rows_of(tokens, present):
    return np.concatenate([[0], np.cumsum(present.sum(axis=1))]), tokens[present]


def test_columns_are_found_where_rows_miss_some():
    rng = np.random.default_rng(2)
    tokens = np.arange(4) * 100 + rng.integers(0, 5, (500, 4))  # column c holds 100 c + ...
    splits, ids = rows_of(tokens, rng.random((500, 4)) < 0.8)
    np.testing.assert_array_equal(infer_columns(splits, ids, 4), ids // 100)


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_inferred_columns_are_correct_and_those_of_complete_rows_are_all_inferred(share):
    rng = np.random.default_rng(3)
    tokens = np.arange(6) * 1000 + rng.integers(0, 300, (200, 6))
    splits, ids = rows_of(tokens, rng.random((200, 6)) < share)
    found = infer_columns(splits, ids, 6)
    assert np.isin(found, [-1, *range(6)]).all()
    np.testing.assert_array_equal(found[found >= 0], ids[found >= 0] // 1000)
    assert share < 1 or (found >= 0).all()


def test_a_category_whose_column_is_unknown_has_none():
    np.testing.assert_array_equal(
        infer_columns(np.array([0, 1, 3]), np.array([7, 8, 9]), 2), [-1, 0, 1]
    )


def test_an_empty_batch_has_no_columns():
    assert len(infer_columns(np.array([0, 0]), np.zeros(0, np.int64), 3)) == 0


def test_known_columns_determine_a_column_that_is_always_missing():
    splits, ids = np.array([0, 2, 4]), np.array([5, 8, 6, 8])  # columns 0 and 2 of three
    np.testing.assert_array_equal(infer_columns(splits, ids, 3), [-1, -1, -1, -1])
    known = KnownColumns(np.array([4, 5]), np.array([2, 0]))
    np.testing.assert_array_equal(infer_columns(splits, ids, 3, known), [0, -1, -1, -1])
    known = KnownColumns(np.array([5, 6, 8]), np.array([0, 0, 2]))
    np.testing.assert_array_equal(infer_columns(splits, ids, 3, known), [0, 2, 0, 2])
