"""Properties of the lift table."""

import math

import numpy as np
import pytest

from twml_ops.analysis.lift import lift_table
from twml_ops.analysis.scoring import Scores


def scores(y, p):
    return Scores(np.asarray(y, np.float32), np.asarray(p, np.float32), 1.0)


def stream(n, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.permutation(n) / n
    return (rng.random(n) < p).astype(float), p


def test_rows_are_those_of_sorted_examples():
    y, p = stream(1000)
    table = lift_table(scores(y, p))
    ordered = y[np.argsort(-p)].reshape(10, 100)
    np.testing.assert_allclose([row.observed for row in table], ordered.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(
        [row.lift for row in table], ordered.mean(axis=1) / y.mean(), rtol=1e-6
    )
    captured = np.cumsum(ordered.sum(axis=1)) / y.sum()
    np.testing.assert_allclose([row.captured for row in table], captured, rtol=1e-6)
    np.testing.assert_allclose([row.least for row in table], np.sort(p)[::-1][99::100], rtol=1e-6)


@pytest.mark.parametrize("n", [1, 9, 10, 11, 105])
def test_every_example_is_in_one_row(n):
    table = lift_table(scores(*stream(n)))
    assert len(table) == min(n, 10)
    assert sum(row.examples for row in table) == n


def test_ties_share_their_positives_whatever_their_order():
    y, p = stream(500)
    p = np.round(p, 1)
    shuffled = np.random.default_rng(1).permutation(500)
    for a, b in zip(
        lift_table(scores(y, p)), lift_table(scores(y[shuffled], p[shuffled])), strict=True
    ):
        assert a == pytest.approx(b, rel=1e-6)


def test_a_constant_prediction_has_lift_one_everywhere():
    for row in lift_table(scores(np.arange(200) % 4 == 0, np.full(200, 0.3))):
        assert row.lift == pytest.approx(1)
        assert row.predicted == pytest.approx(0.3)


def test_without_positives_the_lift_is_undefined():
    (row,) = lift_table(scores([0.0], [0.4]))
    assert row.observed == 0
    assert math.isnan(row.lift)
    assert math.isnan(row.captured)


def test_no_examples_give_no_rows():
    assert lift_table(scores([], [])) == []
