"""ROC-AUC and PR-AUC, exact and from buckets, against scikit-learn."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from tests.pairwise import on_both
from twml_ops.metrics import (
    PRAUC,
    ROCAUC,
    ExactPRAUC,
    ExactROCAUC,
    average_precision,
    roc_auc,
)

REFERENCE = {
    ROCAUC: sk.roc_auc_score,
    ExactROCAUC: sk.roc_auc_score,
    PRAUC: sk.average_precision_score,
    ExactPRAUC: sk.average_precision_score,
}
ALL, BUCKETED, EXACT = list(REFERENCE), [ROCAUC, PRAUC], [ExactROCAUC, ExactPRAUC]
FUNCTIONS = {ExactROCAUC: roc_auc, ExactPRAUC: average_precision}


def stream(seed, n, ties=False):
    """Rare positives with weakly predictive scores."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.2).astype(np.float32)
    y[:2] = 0, 1
    p = 1 / (1 + np.exp(3 - y - rng.normal(0, 1, n)))
    p = np.round(p, 1) if ties else p
    return y, p.astype(np.float32), rng.random(n).astype(np.float32) + 0.01


@pytest.mark.parametrize("metric", EXACT)
@given(n=st.integers(2, 70), seed=st.integers(0, 1000), ties=st.booleans(), weighted=st.booleans())
@settings(max_examples=10, deadline=None)
def test_exact_equals_scikit_learn_in_any_batching(metric, n, seed, ties, weighted):
    y, p, w = stream(seed, n, ties)
    w = w if weighted else None
    want = REFERENCE[metric](y, p, sample_weight=w)
    m = metric()
    for part in (slice(0, seed % n), slice(seed % n, n)):
        m.update_state(y[part, None], p[part, None], w[part] if weighted else None)
    assert float(m.result()) == pytest.approx(want, abs=1e-6)
    assert float(FUNCTIONS[metric](y, p, w)) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("metric", BUCKETED)
@given(n=st.integers(2, 300), seed=st.integers(0, 1000), buckets=st.integers(2, 200))
@settings(max_examples=15, deadline=None)
def test_bounds_enclose_the_exact_area(metric, n, seed, buckets):
    y, p, w = stream(seed, n, ties=seed % 2 == 0)
    m = metric(buckets, dtype="float64")
    m.update_state(y, p, w)
    low, high = (float(x) for x in m.bounds())
    want = REFERENCE[metric](y, p, sample_weight=w)
    assert low - 1e-9 <= want <= high + 1e-9
    assert low - 1e-9 <= float(m.result()) <= high + 1e-9


@pytest.mark.parametrize("metric", BUCKETED)
def test_the_default_buckets_are_fine_enough(metric):
    y, p, w = stream(0, 20000)
    m = metric(dtype="float64")
    m.update_state(y, p, w)
    low, high = (float(x) for x in m.bounds())
    assert high - low < 4e-3
    assert float(m.result()) == pytest.approx(REFERENCE[metric](y, p, sample_weight=w), abs=1e-3)


@pytest.mark.parametrize("metric", BUCKETED)
def test_scores_in_different_buckets_give_the_exact_area(metric):
    logits = np.linspace(-15, 15, 31)
    y = np.random.default_rng(1).random(31) < 0.4
    m = metric(32, from_logits=True, dtype="float64")
    m.update_state(y, logits)
    assert float(m.result()) == pytest.approx(REFERENCE[metric](y, logits), abs=1e-12)


@pytest.mark.parametrize("metric", BUCKETED)
def test_logits_and_their_probabilities_agree(metric):
    y, p, w = stream(2, 500)
    p = p.astype(np.float64)
    a, b = metric(64), metric(64, from_logits=True)
    a.update_state(y, p, w)
    b.update_state(y, np.log(p / (1 - p)), w)
    assert float(a.result()) == pytest.approx(float(b.result()), abs=1e-3)


@pytest.mark.parametrize("metric", ALL)
def test_merged_streams_equal_one_stream(metric):
    y, p, w = stream(3, 400)
    whole, *parts = (metric() for _ in range(4))
    whole.update_state(y, p, w)
    for part, rows in zip(parts, (slice(0, 7), slice(7, 8), slice(8, 400)), strict=True):
        part.update_state(y[rows], p[rows], w[rows])
    parts[0].merge_state(parts[1:])
    assert float(parts[0].result()) == pytest.approx(float(whole.result()), abs=1e-6)


@pytest.mark.parametrize("metric", ALL)
def test_merging_another_metric_is_refused_and_changes_nothing(metric):
    m = metric()
    m.update_state([0.0, 1.0], [0.2, 0.7])
    others = [ROCAUC(7), PRAUC(7), ExactPRAUC() if metric is ExactROCAUC else ExactROCAUC()]
    for other in others:
        with pytest.raises(ValueError, match=f"must all be {metric.__name__}"):
            m.merge_state([m, other])
    assert float(m.result()) == 1.0


@pytest.mark.parametrize("metric", ALL)
def test_edges_are_as_documented(metric):
    m = metric()
    assert math.isnan(float(m.result()))  # nothing seen
    m.update_state([0.0], [0.5])  # one example
    assert math.isnan(float(m.result()))
    m.update_state([0.0, 0.0], [0.0, 1.0])  # no positives
    assert math.isnan(float(m.result()))
    m.reset_state()
    m.update_state([1.0, 1.0], [0.0, 1.0])  # no negatives
    value = float(m.result())
    assert value == 1 if metric in (PRAUC, ExactPRAUC) else math.isnan(value)


@pytest.mark.parametrize("metric", ALL)
def test_probabilities_of_0_and_1_are_ranked(metric):
    m = metric()
    m.update_state([1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0])
    want = REFERENCE[metric]([1, 0, 1, 0], [1.0, 0.0, 0.0, 1.0])
    assert float(m.result()) == pytest.approx(want)


@pytest.mark.parametrize("metric", ALL)
def test_a_nan_prediction_gives_nan_unless_its_weight_is_zero(metric):
    m = metric()
    m.update_state([0.0, 1.0, 1.0], [0.2, 0.7, math.nan], [1.0, 1.0, 0.0])
    assert float(m.result()) == 1.0
    m.update_state([0.0], [math.nan])
    assert math.isnan(float(m.result()))


@pytest.mark.parametrize("metric", ALL)
def test_soft_labels_count_in_part_as_either(metric):
    soft, hard = metric(), metric()
    soft.update_state([0.25, 1.0], [0.3, 0.6])
    hard.update_state([0.0, 1.0, 1.0], [0.3, 0.3, 0.6], [0.75, 0.25, 1.0])
    assert float(soft.result()) == pytest.approx(float(hard.result()), rel=1e-6)


@pytest.mark.parametrize("buckets", [1, 0, 2.5, True])
def test_bad_number_of_buckets_is_refused(buckets):
    with pytest.raises(ValueError, match="num_buckets must be an integer of at least 2"):
        ROCAUC(buckets)


@pytest.mark.parametrize("metric", EXACT)
def test_any_number_of_examples_is_stored(metric):
    y, p, w = stream(4, 9000)
    m = metric()

    @tf.function(reduce_retracing=True)
    def update(y, p, w):
        m.update_state(y, p, w)

    for start in range(0, 9000, 700):
        rows = slice(start, start + 700)
        update(tf.constant(y[rows]), tf.constant(p[rows]), tf.constant(w[rows]))
    assert float(m.result()) == pytest.approx(REFERENCE[metric](y, p, sample_weight=w), abs=1e-6)
    m.reset_state()
    assert math.isnan(float(m.result()))


@pytest.mark.parametrize("metric", ALL)
def test_config_round_trip(metric):
    m = metric(name="other") if metric in EXACT else metric(77, True, name="other")
    again = tf.keras.metrics.deserialize(tf.keras.metrics.serialize(m))
    assert type(again) is metric
    assert again.get_config() == m.get_config()


@pytest.mark.parametrize("jit_compile", on_both([False, True], True))
def test_fit_and_evaluate(jit_compile):
    y, p, w = stream(5, 600)
    which = BUCKETED if jit_compile else ALL  # a variable that grows is nothing for XLA
    four = tf.keras.initializers.Constant(4.0)
    dense = tf.keras.layers.Dense(1, activation="sigmoid", kernel_initializer=four)
    model = tf.keras.Sequential([dense])
    model.compile(
        "sgd",
        "binary_crossentropy",
        weighted_metrics=[m() for m in which],
        jit_compile=jit_compile,
    )
    model.fit(p[:, None], y[:, None], sample_weight=w, batch_size=64, epochs=2, verbose=0)
    got = model.evaluate(p[:, None], y[:, None], sample_weight=w, batch_size=100, verbose=0)
    scores = model.predict(p[:, None], verbose=0)[:, 0]
    want = [REFERENCE[m](y, scores, sample_weight=w) for m in which]
    np.testing.assert_allclose(got[1:], want, atol=2e-3)
