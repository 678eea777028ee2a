"""Which cases of a product run."""

import itertools

import pytest

from tests.pairwise import ONE_TF, SLOW, classes, each_value, on_both, pairwise


def met(rows, width):
    return {c for r in rows for c in itertools.combinations(enumerate(r), width)}


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("lengths", [(1,), (4,), (2, 3), (1, 5), (3, 4, 2), (2, 2, 2, 3)])
def test_values_meet_and_no_case_is_lost(lengths, together):
    together = min(together, len(lengths))
    found = classes(lengths, together)
    rows = list(itertools.product(*map(range, lengths)))
    assert list(found) == rows
    on_both_versions = [r for r in rows if found[r] is None]
    ordinary = [r for r in rows if found[r] is not SLOW]
    assert met(on_both_versions, 1) == met(rows, 1)
    assert len(on_both_versions) == max(lengths)
    assert met(ordinary, together) == met(rows, together)
    assert len(lengths) <= together or len(ordinary) < len(rows) or max(lengths) == len(rows)


@pairwise(a=[1, 2], b="xy", c=[None, [0]])
def test_the_values_of_a_case_have_their_names(a, b, c):
    assert a in (1, 2)
    assert b in "xy"
    assert c in (None, [0])


def test_what_is_not_kept_runs_on_one_tensorflow():
    (_, marked), (__, kept) = [(p.values[0], p.marks) for p in on_both("ab", "b")]
    assert (marked, kept) == ([ONE_TF], [])


def test_each_value_leaves_the_rest_to_the_slow_tests():
    names, cases = each_value(a=[1, 2], b="xy").args
    assert names == ["a", "b"]
    assert [c.values for c in cases if not c.marks] == [(1, "x"), (2, "y")]
