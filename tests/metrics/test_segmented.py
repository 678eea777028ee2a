"""Metrics per segment."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import each_value
from twml_ops.metrics import (
    PRAUC,
    ROCAUC,
    CalibrationRatio,
    ExactROCAUC,
    NormalizedEntropy,
    Segmented,
    Windowed,
)

KEPT = [NormalizedEntropy, CalibrationRatio, ROCAUC, PRAUC]


def stream(seed, n, segments):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.4).astype(np.float32)
    return (
        y,
        (0.3 * y + 0.7 * rng.random(n)).astype(np.float32),
        rng.random(n).astype(np.float32) + 0.1,
        rng.integers(0, segments, n),
    )


@pytest.mark.parametrize("metric", KEPT)
def test_each_segment_has_the_metric_of_its_examples(metric):
    y, p, w, s = stream(0, 200, 3)
    m = Segmented(metric(), ["a", "b", "c"])
    for rows in (slice(0, 50), slice(50, 200)):
        m.update_state(y[rows], p[rows, None], w[rows], segments=s[rows])
    result = m.result()
    for i, name in enumerate("abc"):
        one = metric()
        one.update_state(y[s == i], p[s == i], w[s == i])
        assert float(result[f"{one.name}/{name}"]) == pytest.approx(float(one.result()), rel=1e-5)
        assert float(m.values()[i]) == float(result[f"{one.name}/{name}"])


def test_segments_may_be_the_second_column_of_the_labels():
    y, p, w, s = stream(1, 60, 2)
    a, b = (Segmented(NormalizedEntropy(), 2) for _ in range(2))
    a.update_state(y, p, w, segments=s)
    b.update_state(np.stack([y, s], 1), p, w)
    np.testing.assert_array_equal(a.values(), b.values())


def test_the_mean_is_weighted_over_segments_that_have_a_value():
    y, p, w, s = stream(2, 100, 3)
    y[s == 1] = 0  # no AUC there
    m = Segmented(ROCAUC(), 4, reduce="mean")  # and nothing in segment 3
    m.update_state(y, p, w, segments=s)
    aucs, weights = [], []
    for i in (0, 2):
        one = ROCAUC()
        one.update_state(y[s == i], p[s == i], w[s == i])
        aucs.append(float(one.result()))
        weights.append(w[s == i].sum())
    assert float(m.result()) == pytest.approx(np.average(aucs, weights=weights), rel=1e-5)
    assert math.isnan(float(Segmented(ROCAUC(), 2, reduce="mean").result()))


@pytest.mark.parametrize("metric", KEPT)
def test_examples_of_unknown_segments_are_ignored(metric):
    y, p, w, s = stream(3, 80, 4)
    m, want = Segmented(metric(), 2), Segmented(metric(), 2)
    m.update_state(y, p, w, segments=s - 1)  # -1 .. 2
    kept = (s == 1) | (s == 2)
    want.update_state(y[kept], p[kept], w[kept], segments=s[kept] - 1)
    np.testing.assert_allclose(m.values(), want.values(), rtol=1e-6)


def test_an_empty_segment_is_undefined():
    m = Segmented(CalibrationRatio(), 2)
    m.update_state([1.0, 0.0], [0.5, 0.5], segments=[0, 0])
    assert float(m.values()[0]) == 1
    assert math.isnan(float(m.values()[1]))


def test_merged_streams_equal_one_stream():
    y, p, w, s = stream(4, 90, 3)
    whole, first, second = (Segmented(NormalizedEntropy(), 3) for _ in range(3))
    whole.update_state(y, p, w, segments=s)
    first.update_state(y[:30], p[:30], w[:30], segments=s[:30])
    second.update_state(y[30:], p[30:], w[30:], segments=s[30:])
    first.merge_state([second])
    np.testing.assert_allclose(first.values(), whole.values(), rtol=1e-6)
    for other in (Segmented(NormalizedEntropy(), 2), Segmented(ROCAUC(), 3), NormalizedEntropy()):
        with pytest.raises(ValueError, match="must all be Segmented"):
            first.merge_state([other])


@each_value(reduce=["none", "mean"], run_eagerly=[False, True])
def test_in_fit_the_logs_have_every_segment(reduce, run_eagerly):
    y, p, _, s = stream(5, 128, 2)
    crossentropy = tf.keras.losses.BinaryCrossentropy()
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="sigmoid")])
    model.compile(
        "sgd",
        lambda y, p: crossentropy(y[:, :1], p),
        metrics=[Segmented(NormalizedEntropy(), ["new", "old"], reduce)],
        run_eagerly=run_eagerly,
    )
    labels = np.stack([y, s], axis=1)
    history = model.fit(p[:, None], labels, batch_size=32, epochs=2, verbose=0).history
    logs = model.evaluate(p[:, None], labels, verbose=0, return_dict=True)
    scores = model.predict(p[:, None], verbose=0)
    want = Segmented(NormalizedEntropy(), 2, reduce)
    want.update_state(y, scores, segments=s)
    if reduce == "mean":
        assert logs["normalized_entropy"] == pytest.approx(float(want.result()), rel=1e-4)
    for i, name in enumerate(["new", "old"] if reduce == "none" else []):
        assert len(history[f"normalized_entropy/{name}"]) == 2
        got = logs[f"normalized_entropy/{name}"]
        assert float(got) == pytest.approx(float(want.values()[i]), rel=1e-4)


def test_config_round_trip():
    m = Segmented(ROCAUC(50, from_logits=True), ["a", "b"], "mean", name="gauc")
    again = tf.keras.metrics.deserialize(tf.keras.metrics.serialize(m))
    assert type(again) is Segmented
    assert again.get_config() == m.get_config()
    y, p, w, s = stream(6, 40, 2)
    for each in (m, again):
        each.update_state(y, p, w, segments=s)
    assert float(m.result()) == float(again.result())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ExactROCAUC(), 2), "metric must be a metric of this package"),
        ((Windowed(ROCAUC()), 2), "metric must be a metric of this package"),
        ((tf.keras.metrics.AUC(), 2), "got AUC"),
        ((ROCAUC(), 0), "segments must be a positive number"),
        ((ROCAUC(), ["a", "a"]), "distinct names"),
        ((ROCAUC(), 2, "sum"), "reduce must be 'none' or 'mean', got 'sum'"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Segmented(*arguments)


def test_labels_without_segments_are_refused():
    with pytest.raises(ValueError, match=r"y_true must be \[B, 2\], label and segment"):
        Segmented(ROCAUC(), 2).update_state([[0.0], [1.0]], [0.2, 0.3])


@pytest.mark.parametrize(
    "segments",
    [
        np.array([0, 1 << 32, -(1 << 32), 1, (1 << 32) + 1], np.int64),
        np.array([0, 1 << 63, (1 << 64) - 1, 1, 1 << 32], np.uint64),
        np.array([0, np.nan, -0.5, 1, 1e300]),
    ],
    ids=["int64", "uint64", "float64"],
)
def test_no_number_out_of_range_becomes_a_segment(segments):
    m = Segmented(CalibrationRatio(), 2)
    m.update_state(np.ones(5), [0.5, 0.1, 0.2, 0.7, 0.3], segments=segments)
    np.testing.assert_allclose(m.values(), [0.5, 0.7], rtol=1e-6)
