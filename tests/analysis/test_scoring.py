"""The metrics of a run equal the metrics of scikit-learn."""

import math

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sk

from twml_ops.analysis import scoring
from twml_ops.report.result_tables import metric_table


def scores(y, p):
    return scoring.Scores(np.asarray(y, np.float32), np.asarray(p, np.float32), 1.0)


def test_metrics_equal_scikit_learn():
    rng = np.random.default_rng(0)
    y, p = rng.random(500) < 0.3, np.round(rng.random(500), 2)  # with ties
    got = scoring.metrics(scores(y, p))
    assert tuple(got) == scoring.METRICS
    loss = sk.log_loss(y, np.clip(p, 1e-7, 1 - 1e-7))
    base = sk.log_loss(y, np.full(500, y.mean()))
    want = {
        "auc": sk.roc_auc_score(y, p),
        "pr_auc": sk.average_precision_score(y, p),
        "log_loss": loss,
        "normalized_entropy": loss / base,
        "rce": 100 * (1 - loss / base),
        "calibration": p.mean() / y.mean(),
    }
    for name, value in want.items():
        assert got[name] == pytest.approx(value, rel=1e-5), name


def test_weighted_metrics_are_those_of_repeated_examples():
    rng = np.random.default_rng(2)
    y, p = rng.random(300) < 0.3, np.round(rng.random(300), 2)
    w = rng.integers(0, 4, 300)
    got = scoring.metrics(scores(y, p)._replace(weights=w.astype(np.float32)))
    want = scoring.metrics(scores(np.repeat(y, w), np.repeat(p, w)))
    assert got == pytest.approx(want, rel=1e-6)
    assert got != pytest.approx(scoring.metrics(scores(y, p)), rel=1e-6)


def test_examples_of_weight_0_do_not_count():
    weights = np.array([1, 0, 0], np.float32)
    got = scoring.metrics(scores([1, 0, 1], [0.5, 0.6, 0.7])._replace(weights=weights))
    assert math.isnan(got["auc"])
    assert got["log_loss"] == pytest.approx(math.log(2))
    none = scores([1], [0.5])._replace(weights=np.zeros(1, np.float32))
    assert math.isnan(scoring.metrics(none)["log_loss"])


def test_sample_weights_of_batches_are_kept():
    batch = (np.zeros((3, 1), np.float32), np.ones((3, 1), np.float32), np.arange(3.0))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="sigmoid")])
    scored = scoring.score(model, tf.data.Dataset.from_tensors(batch).repeat(2))
    assert scored.weights.tolist() == [0, 1, 2, 0, 1, 2]


def test_metrics_that_need_two_classes_are_nan_for_one_class():
    got = scoring.metrics(scores([1, 1, 1], [0.5, 0.6, 0.7]))
    assert all(math.isnan(got[k]) for k in ("auc", "pr_auc", "normalized_entropy", "rce"))
    assert math.isfinite(got["log_loss"])


def test_standard_errors_are_given_for_the_metrics_that_have_one():
    rng = np.random.default_rng(1)
    y = rng.random(400) < 0.3
    got = scoring.standard_errors(scores(y, 0.3 + 0.2 * rng.random(400) * y))
    assert set(got) == {"normalized_entropy", "rce", "calibration"}
    assert all(0 < v < 10 for v in got.values())
    assert math.isnan(scoring.standard_errors(scores([1, 1], [0.5, 0.6]))["rce"])


def test_calibration_error_is_the_mean_distance_from_the_diagonal():
    p = np.repeat([0.2, 0.6], 100)
    y = np.concatenate([np.arange(100) < 30, np.arange(100) < 50])
    assert scoring.calibration_error(scores(y, p), bins=2) == pytest.approx(0.1, rel=1e-6)
    assert scoring.calibration_error(scores(y, y), bins=2) == 0
    assert math.isnan(scoring.calibration_error(scores([], [])))


def test_every_example_is_scored_in_order():
    x = np.linspace(0, 1, 11, dtype=np.float32)[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(4)
    seen = []
    got = scoring.score(
        tf.keras.Sequential([tf.keras.layers.Activation("linear")]), data, seen.append
    )
    np.testing.assert_array_equal(got.predictions, x[:, 0])
    np.testing.assert_array_equal(got.labels, x[:, 0])
    assert seen == [4, 4, 3]


def test_nan_prediction_is_an_error_that_names_the_example():
    x = np.array([[1.0], [np.nan]], np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(2)
    with pytest.raises(ValueError, match="example 1"):
        scoring.score(tf.keras.Sequential([tf.keras.layers.Activation("linear")]), data)


@pytest.mark.parametrize(
    ("y", "weights", "reason"),
    [
        ([0, 0], None, "click is 0 in all examples of d"),
        ([1, 0], [1, 0], "click is 1 in all examples of d"),
        ([1, 0], [0, 0], "all sample weights of d are 0"),
        ([], None, "d has no examples"),
        ([1, 0], None, None),
    ],
)
def test_metrics_that_are_undefined_have_a_reason(y, weights, reason):
    found = scores(y, np.full(len(y), 0.3))
    if weights is not None:
        found = found._replace(weights=np.asarray(weights, np.float32))
    got = scoring.undefined_metrics({"click": found}, "d")
    assert got == ([] if reason is None else [f"{reason}: some metrics are undefined."])
    metrics = scoring.metrics(found)
    assert math.isnan(metrics["auc"]) == (reason is not None)
    table = metric_table({**metrics, "new_metric": 0.5}, {"click": metrics})
    assert [row.key for row in table.rows] == [*metrics, "new_metric"]


def test_a_log_loss_on_labels_of_one_value_is_compared_with_nothing():
    metrics = {"log_loss": 0.2, "normalized_entropy": math.nan}
    (row, _) = metric_table(metrics, {"click": metrics}).rows
    assert (row.key, row.note) == ("log_loss", "")
