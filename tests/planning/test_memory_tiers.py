"""The division of memory among tables against all divisions of small ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops.planning import TableDemand, choose_tiers


def demand(name, rates, reads=100.0, row_bytes=8, least=1):
    """A table whose cache of i + 1 rows has the hit rate rates[i]; the last one is all rows."""
    rows = len(rates) + 1
    return TableDemand(
        name, rows, row_bytes, reads, least, np.arange(1, rows), np.asarray(rates, float)
    )


def served(tables, choices):
    return sum(t.reads_per_second * c.hit_rate for t, c in zip(tables, choices, strict=True))


def test_a_table_that_fits_is_in_memory():
    tables = [demand("a", [0.1, 0.2]), demand("b", [0.9])]
    for choice, table in zip(choose_tiers(tables, 1000), tables, strict=True):
        assert choice.in_memory
        assert (choice.cached_rows, choice.bytes) == (table.rows, table.bytes)
        assert (choice.hit_rate, choice.misses_per_second) == (1.0, 0.0)


def test_memory_goes_where_a_byte_serves_most_reads():
    skewed, uniform = demand("skewed", [0.8, 0.9, 0.95]), demand("uniform", [0.25, 0.5, 0.75])
    first, second = choose_tiers([skewed, uniform], 5 * 8)
    assert (first.cached_rows, second.cached_rows) == (1, 4)
    assert not first.in_memory
    assert second.in_memory
    assert first.misses_per_second == pytest.approx(20)


def test_a_table_that_is_read_rarely_gets_the_rest():
    often, rarely = demand("often", [0.5, 0.7], 1000), demand("rarely", [0.5, 0.7], 1)
    assert [c.in_memory for c in choose_tiers([rarely, often], 4 * 8)] == [False, True]


concave = st.lists(st.floats(0.01, 1), min_size=1, max_size=5).map(
    lambda steps: np.cumsum(sorted(steps, reverse=True)) / (sum(steps) + min(steps))
)


@given(st.lists(concave, min_size=1, max_size=3), st.integers(0, 12), st.randoms())
@settings(max_examples=80, deadline=None)
def test_concave_curves_are_divided_as_the_best_division_does(curves, rows, random):
    tables = [demand(str(i), curve, random.choice([1.0, 50.0])) for i, curve in enumerate(curves)]
    memory = (len(tables) + rows) * 8
    choices = choose_tiers(tables, memory)
    assert sum(c.bytes for c in choices) <= memory

    def gain(table, size):
        rates = [*table.hit_rates, 1.0]
        return table.reads_per_second * rates[size - 1]

    best = max(
        sum(gain(t, n) for t, n in zip(tables, sizes, strict=True))
        for sizes in itertools.product(*(range(1, t.rows + 1) for t in tables))
        if sum(sizes) * 8 <= memory
    )
    # A step of the hull may be of several rows, so that the last one may not fit.
    assert served(tables, choices) <= best * (1 + 1e-9)
    largest = max(t.reads_per_second for t in tables)
    assert served(tables, choices) >= best - largest


def test_the_rows_of_a_step_have_to_fit():
    tables = [demand("a", [0.1, 0.5, 0.9], least=3), demand("b", [0.5], least=9)]
    with pytest.raises(ValueError, match="rows of one step of all tables, 40 bytes, got 39"):
        choose_tiers(tables, 39)
    first, second = choose_tiers(tables, 40)
    assert first.cached_rows == 3
    assert second.in_memory  # it has only two rows


def test_tables_without_reads_and_no_tables():
    assert choose_tiers([], 0) == []
    (idle,) = choose_tiers([demand("idle", [0.5], reads=0.0)], 8)
    assert idle.misses_per_second == 0
