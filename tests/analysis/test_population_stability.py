"""Properties of the population stability index."""

import math

import numpy as np
import pytest

from twml_ops.analysis.population_stability import population_stability


def test_index_is_the_textbook_sum():
    before, after = np.array([400.0, 300, 300]), np.array([200.0, 500, 300])
    b, a = before / 1000, after / 1000
    want = np.sum((a - b) * np.log(a / b))
    assert population_stability(before, after).psi == pytest.approx(want, rel=0.01)


def test_index_is_symmetric_and_0_for_equal_histograms():
    x, y = np.array([5.0, 0, 80]), np.array([10.0, 7, 3])
    assert population_stability(x, y).psi == pytest.approx(population_stability(y, x).psi)
    assert population_stability(x, x).psi == 0
    assert population_stability(x, y).psi > 0


def test_an_empty_bin_gives_a_finite_index_and_a_bin_empty_in_both_is_left_out():
    x, y = np.array([100.0, 0]), np.array([0.0, 100])
    assert 5 < population_stability(x, y).psi < 20
    a, b = np.array([30.0, 0, 70]), np.array([60.0, 0, 40])
    assert population_stability(a, b) == population_stability(a[[0, 2]], b[[0, 2]])


def test_psi_by_chance_is_the_mean_index_of_samples_from_one_population():
    rng = np.random.default_rng(0)
    shares = np.full(11, 1 / 11)
    found = [
        population_stability(rng.multinomial(2000, shares), rng.multinomial(500, shares))
        for _ in range(300)
    ]
    assert np.mean([f.psi for f in found]) == pytest.approx(found[0].psi_by_chance, rel=0.15)


def test_index_of_an_empty_histogram_is_nan():
    assert math.isnan(population_stability(np.zeros(3), np.ones(3)).psi)
    assert math.isnan(population_stability(np.ones(3), np.zeros(3)).psi)
