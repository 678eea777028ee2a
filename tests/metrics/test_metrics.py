"""The metrics against NumPy in float64."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops.metrics import (
    ROCAUC,
    CalibrationRatio,
    ExactROCAUC,
    NormalizedEntropy,
    RelativeCrossEntropy,
)

ALL = [NormalizedEntropy, RelativeCrossEntropy, CalibrationRatio]
EPSILON = 1e-7


def normalized_entropy(y, p, w=None):
    y, p = np.asarray(y, np.float64), np.asarray(p, np.float64)
    w = np.ones_like(y) if w is None else np.asarray(w, np.float64)
    p = np.clip(p, EPSILON, 1 - EPSILON)
    rate = np.sum(w * y) / np.sum(w)
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    loss = -np.sum(w * (y * np.log(p) + (1 - y) * np.log1p(-p))) / np.sum(w)
    return loss / entropy


def relative_cross_entropy(y, p, w=None):
    return 100 * (1 - normalized_entropy(y, p, w))


def calibration(y, p, w=None):
    w = np.ones(len(y)) if w is None else np.asarray(w, np.float64)
    return np.sum(w * p) / np.sum(w * y)


REFERENCE = dict(zip(ALL, [normalized_entropy, relative_cross_entropy, calibration], strict=True))


def stream(seed, n):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.3).astype(np.float32)
    y[:2] = 0, 1
    return y, rng.random(n).astype(np.float32), rng.random(n).astype(np.float32) + 0.01


@pytest.mark.parametrize("metric", ALL)
@given(n=st.integers(2, 65), seed=st.integers(0, 1000), weighted=st.booleans())
@settings(max_examples=15, deadline=None)
def test_equals_numpy_in_any_batching(metric, n, seed, weighted):
    y, p, w = stream(seed, n)
    m = metric()
    cut = seed % n
    for part in (slice(0, cut), slice(cut, n)):
        m.update_state(y[part, None], p[part, None], w[part] if weighted else None)
    want = REFERENCE[metric](y, p, w if weighted else None)
    np.testing.assert_allclose(m.result(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("metric", ALL)
def test_merged_streams_equal_one_stream(metric):
    y, p, w = stream(1, 40)
    whole, *parts = (metric() for _ in range(4))
    whole.update_state(y, p, w)
    for part, rows in zip(parts, (slice(0, 7), slice(7, 8), slice(8, 40)), strict=True):
        part.update_state(y[rows], p[rows], w[rows])
    parts[0].merge_state(parts[1:])
    np.testing.assert_allclose(parts[0].result(), whole.result(), rtol=1e-6)


def test_merging_another_metric_is_refused_and_changes_nothing():
    m = NormalizedEntropy()
    m.update_state([0.0, 1.0], [0.2, 0.7])
    before = float(m.result())
    for other in (CalibrationRatio(), NormalizedEntropy(epsilon=1e-3), RelativeCrossEntropy()):
        with pytest.raises(ValueError, match="must all be NormalizedEntropy"):
            m.merge_state([m, other])
    assert float(m.result()) == before


@pytest.mark.parametrize("metric", ALL)
def test_undefined_is_nan(metric):
    m = metric()
    assert math.isnan(float(m.result()))  # nothing seen
    m.update_state([0.0, 0.0], [0.1, 0.2])  # no positives
    assert math.isnan(float(m.result()))
    m.reset_state()
    m.update_state([0.0, 1.0], [0.1, 0.2], [0.0, 0.0])  # no weight
    assert math.isnan(float(m.result()))


def test_entropy_without_negatives_is_nan():
    m = NormalizedEntropy()
    m.update_state([1.0, 1.0, 1.0], [0.1, 0.2, 0.9], [0.1, 0.2, 0.3])
    assert math.isnan(float(m.result()))


def test_certain_and_wrong_costs_minus_log_epsilon():
    m = NormalizedEntropy()
    m.update_state([0.0, 1.0], [1.0, 0.0])
    np.testing.assert_allclose(m.result(), -math.log(EPSILON) / math.log(2), rtol=1e-6)


def test_certain_and_right_is_perfect():
    m = RelativeCrossEntropy()
    m.update_state([0.0, 1.0], [0.0, 1.0])
    np.testing.assert_allclose(m.result(), 100, rtol=1e-6)


def test_base_rate_prediction_has_normalized_entropy_one():
    m = NormalizedEntropy()
    y = np.array([1, 0, 0, 0, 0], np.float32)
    m.update_state(y, np.full(5, 0.2, np.float32))
    np.testing.assert_allclose(m.result(), 1.0, rtol=1e-6)


def test_soft_labels_are_allowed():
    y, p = np.array([0.25, 0.5]), np.array([0.3, 0.4])
    m = NormalizedEntropy()
    m.update_state(y, p)
    np.testing.assert_allclose(m.result(), normalized_entropy(y, p), rtol=1e-6)


@pytest.mark.parametrize("metric", ALL)
def test_examples_of_weight_zero_are_ignored(metric):
    m = metric()
    m.update_state([0.0, 1.0, 1.0], [0.2, 0.7, math.nan], [1.0, 1.0, 0.0])
    np.testing.assert_allclose(m.result(), REFERENCE[metric]([0, 1], [0.2, 0.7]), rtol=1e-5)


@pytest.mark.parametrize("metric", ALL)
def test_weights_of_rows_are_not_broadcast_across_columns(metric):
    y, p, w = stream(3, 9)
    results = []
    for labels, preds, weights in [(y, p, w), (y, p[:, None], w), (y[:, None], p, w[:, None])]:
        m = metric()
        m.update_state(labels, preds, weights)
        results.append(float(m.result()))
    assert results[0] == results[1] == results[2]
    np.testing.assert_allclose(results[0], REFERENCE[metric](y, p, w), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("metric", ALL)
def test_scalar_weight_cancels(metric):
    y, p, _ = stream(4, 9)
    m, plain = metric(), metric()
    m.update_state(y, p, 3.0)
    plain.update_state(y, p)
    np.testing.assert_allclose(m.result(), plain.result(), rtol=1e-6)


def test_extreme_logits_are_exact():
    z = np.array([-80.0, 90.0, 3.0], np.float32)
    y = np.array([1.0, 1.0, 0.0], np.float32)
    m = NormalizedEntropy(from_logits=True)
    m.update_state(y, z)
    loss = np.mean(np.logaddexp(0, z.astype(np.float64)) - y * z)
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    np.testing.assert_allclose(m.result(), loss / entropy, rtol=1e-6)


def test_logits_and_their_probabilities_agree():
    y, p, w = stream(5, 33)
    p = np.clip(p, 0.01, 0.99)
    for metric in ALL:
        a, b = metric(), metric(from_logits=True)
        a.update_state(y, p, w)
        b.update_state(y, np.log(p / (1 - p)), w)
        np.testing.assert_allclose(a.result(), b.result(), rtol=1e-4, atol=1e-4)


def test_small_batches_still_count_after_many_examples():
    m = CalibrationRatio()
    m.update_state([1.0], [0.0], [2.0**25])  # float32 would lose the examples that follow
    for _ in range(8):
        m.update_state([1.0], [1.0])
    np.testing.assert_allclose(m.result(), 8 / (2**25 + 8), rtol=1e-6)


@pytest.mark.parametrize("epsilon", [-1e-9, 0.5, math.nan])
def test_bad_epsilon_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        NormalizedEntropy(epsilon=epsilon)


@pytest.mark.parametrize("metric", ALL)
def test_config_round_trip(metric):
    m = metric(from_logits=True, name="other")
    again = tf.keras.metrics.deserialize(tf.keras.metrics.serialize(m))
    assert type(again) is metric
    assert again.get_config() == m.get_config()


@pytest.mark.parametrize("metric", ALL)
def test_tf_function_with_unknown_shapes_equals_eager(metric):
    y, p, w = stream(6, 12)
    eager, traced = metric(), metric()
    eager.update_state(y, p, w)
    vector = tf.TensorSpec([None], tf.float32)

    @tf.function(input_signature=[vector, vector, vector])
    def update(y, p, w):
        traced.update_state(y, p, w)

    update(y, p, w)
    assert float(eager.result()) == float(traced.result())


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_evaluate_and_keras_file(tmp_path, run_eagerly):
    y, p, w = stream(7, 64)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="sigmoid")])
    model.compile(
        "sgd", "binary_crossentropy", weighted_metrics=[m() for m in ALL], run_eagerly=run_eagerly
    )
    model.fit(p[:, None], y, sample_weight=w, batch_size=16, verbose=0)
    path = str(tmp_path / "model.keras")
    model.save(path)
    again = tf.keras.models.load_model(path)
    got = again.evaluate(p[:, None], y, sample_weight=w, batch_size=10, verbose=0)
    predicted = model.predict(p[:, None], verbose=0)[:, 0]
    want = [REFERENCE[m](y, predicted, w) for m in ALL]
    np.testing.assert_allclose(got[1:], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("metric", [*ALL, ROCAUC, ExactROCAUC])
@pytest.mark.parametrize(("labels", "predictions"), [(1, 4), (4, 1), (4, 8)])
def test_one_label_is_not_broadcast_to_many_predictions(metric, labels, predictions):
    m = metric()
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        m.update_state(np.ones(labels), np.full([predictions, 1], 0.5))
