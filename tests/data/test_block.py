"""Slicing, permuting and joining rows, against lists."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops.data.block import Block, Rows

ENTRIES = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), max_size=4), max_size=9
)


def rows_from(lists):
    flat = [e for row in lists for e in row]
    ids = np.array([i for i, _ in flat], np.int64)
    values = np.array([v for _, v in flat], np.float32)
    return Rows.from_lengths(np.array([len(r) for r in lists], np.int64), ids, values)


def lists_from(rows):
    pairs = list(zip(rows.ids.tolist(), rows.values.tolist(), strict=True))
    splits = rows.row_splits
    assert splits.dtype == np.int64
    assert splits[0] == 0
    assert splits[-1] == len(pairs)
    return [pairs[a:b] for a, b in pairwise(splits)]


@settings(deadline=None)
@given(ENTRIES, st.data())
def test_slice_and_take_are_those_of_a_list(lists, data):
    rows = rows_from(lists)
    assert lists_from(rows) == lists
    start = data.draw(st.integers(0, len(lists)))
    stop = data.draw(st.integers(start, len(lists)))
    assert lists_from(rows.slice(start, stop)) == lists[start:stop]
    order = np.array(data.draw(st.permutations(range(len(lists)))), np.int64)[: stop + 1]
    assert lists_from(rows.take(order)) == [lists[i] for i in order]
    assert lists_from(rows.slice(start, stop).take(np.arange(stop - start))) == lists[start:stop]


@settings(deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=4))
def test_concat_joins(parts):
    joined = Rows.concat([rows_from(p) for p in parts])
    assert lists_from(joined) == [row for p in parts for row in p]


def test_numbers_that_are_nan_are_absent():
    rows = Rows.from_numbers(np.array([[1, np.nan], [np.nan, np.nan], [3, 4]], np.float32))
    assert lists_from(rows) == [[(0, 1)], [], [(0, 3), (1, 4)]]


def test_absent_categories_are_left_out_in_column_order():
    ids = np.array([[5, 6, 7], [8, 9, 10]])
    rows = Rows.from_columns(ids, np.array([[True, False, True], [False, True, True]]))
    assert rows.ids.tolist() == [5, 7, 9, 10]
    assert rows.row_splits.tolist() == [0, 2, 4]


def test_blocks_move_labels_and_groups_together():
    lists = [[(i, i)] * i for i in range(5)]
    block = Block(np.arange(5, dtype=np.float32), {"sparse": rows_from(lists)})
    taken = block.take(np.array([4, 0, 2]))
    assert taken.labels.tolist() == [4, 0, 2]
    assert lists_from(taken.groups["sparse"]) == [lists[4], lists[0], lists[2]]
    both = Block.concat([block.slice(1, 3), taken])
    assert both.labels.tolist() == [1, 2, 4, 0, 2]
    assert len(both) == 5
