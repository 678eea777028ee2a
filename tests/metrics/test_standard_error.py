"""The standard errors of the metrics that are ratios of sums."""

import math

import numpy as np
import pytest
import tensorflow as tf

from twml_ops.metrics import CalibrationRatio, NormalizedEntropy, RelativeCrossEntropy, Segmented

ALL = [NormalizedEntropy, RelativeCrossEntropy, CalibrationRatio]


def stream(seed, n):
    """Predictions that are a little too high."""
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 3, n)
    return (rng.random(n) < 0.9 * p).astype(np.float64), p, rng.random(n) + 0.1


def of_samples(metric, samples):
    """The results and the standard errors of many samples, each one a segment."""
    y, p, w = (np.concatenate(x) for x in zip(*samples, strict=True))
    m = Segmented(metric(), len(samples), dtype="float64")
    m.update_state(y, p, w, segments=np.repeat(range(len(samples)), len(samples[0][0])))
    return m.values().numpy(), m.standard_errors().numpy()


def jackknife(metric, y, p, w):
    """The standard error from leaving out one example at a time: an independent, slow way."""
    n = len(y)
    left, _ = of_samples(metric, [tuple(np.delete(x, i) for x in (y, p, w)) for i in range(n)])
    return math.sqrt((n - 1) / n * np.sum((left - np.mean(left)) ** 2))


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("weighted", [False, True])
def test_is_close_to_the_jackknife(metric, weighted):
    y, p, w = stream(0, 150)
    w = w if weighted else np.ones_like(w)
    m = metric(dtype="float64")
    m.update_state(y, p, w)
    assert float(m.standard_error()) == pytest.approx(jackknife(metric, y, p, w), rel=0.05)


@pytest.mark.parametrize("metric", ALL)
def test_equals_the_spread_of_results_over_samples(metric):
    samples = [stream(seed, 400) for seed in range(500)]
    results, errors = of_samples(metric, [(y, p, np.ones_like(w)) for y, p, w in samples])
    assert np.mean(errors) == pytest.approx(np.std(results), rel=0.1)


@pytest.mark.parametrize("metric", ALL)
def test_doubling_every_weight_changes_nothing_and_every_example_a_factor(metric):
    y, p, w = stream(1, 100)
    errors = []
    for args in ((y, p, w), (y, p, 2 * w), tuple(np.tile(x, 2) for x in (y, p, w))):
        m = metric()
        m.update_state(*args)
        errors.append(float(m.standard_error()))
    n = w.sum() ** 2 / (w**2).sum()
    assert errors[1] == pytest.approx(errors[0], rel=1e-5)
    assert errors[2] == pytest.approx(errors[0] * math.sqrt((n - 1) / (2 * n - 1)), rel=1e-5)


@pytest.mark.parametrize("metric", ALL)
def test_of_merged_streams_is_that_of_one(metric):
    y, p, w = stream(2, 60)
    whole, first, second = metric(), metric(), metric()
    whole.update_state(y, p, w)
    first.update_state(y[:20], p[:20], w[:20])
    second.update_state(y[20:], p[20:], w[20:])
    first.merge_state([second])
    assert float(first.standard_error()) == pytest.approx(float(whole.standard_error()), rel=1e-5)


def test_rce_has_a_hundred_times_that_of_normalized_entropy():
    y, p, w = stream(3, 50)
    errors = {}
    for metric in (NormalizedEntropy, RelativeCrossEntropy):
        m = metric()
        m.update_state(y, p, w)
        errors[metric] = float(m.standard_error())
    assert errors[RelativeCrossEntropy] == pytest.approx(100 * errors[NormalizedEntropy], rel=1e-5)


@pytest.mark.parametrize("metric", ALL)
def test_undefined_is_nan(metric):
    m = metric()
    assert math.isnan(float(m.standard_error()))  # nothing seen
    m.update_state([0.3], [0.2])
    assert math.isfinite(float(m.result()))
    assert math.isnan(float(m.standard_error()))  # one example
    m.reset_state()
    m.update_state([0.0, 0.0], [0.2, 0.3])
    assert math.isnan(float(m.standard_error()))  # no positives


def test_of_certain_predictions_is_finite():
    m = NormalizedEntropy()
    m.update_state([0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0])
    assert float(m.standard_error()) > 0


def test_a_perfect_calibration_of_constants_has_none():
    m = CalibrationRatio()
    m.update_state([0.5] * 4, [0.5] * 4)
    assert float(m.standard_error()) == pytest.approx(0, abs=1e-6)


def test_in_a_function_equals_eager():
    y, p, w = stream(4, 30)
    m = RelativeCrossEntropy()
    m.update_state(y, p, w)
    assert float(tf.function(m.standard_error)()) == pytest.approx(float(m.standard_error()))


def test_of_segments_are_those_of_their_examples():
    y, p, w = stream(5, 80)
    segments = np.arange(80) % 2
    both = Segmented(NormalizedEntropy(), 2)
    both.update_state(y, p, w, segments=segments)
    for s in range(2):
        one = NormalizedEntropy()
        one.update_state(y[segments == s], p[segments == s], w[segments == s])
        assert float(both.standard_errors()[s]) == pytest.approx(float(one.standard_error()))
