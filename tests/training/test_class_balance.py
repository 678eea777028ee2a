"""The weight of positives and the correction after training on some negatives only."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops.data import Schema, open_source
from twml_ops.models._labels import smoothed_logits
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import (
    check_balance,
    corrected,
    training_examples,
    weighted,
)
from twml_ops.training.trials import validation_parts

LABELS = np.array([[0.0], [1.0], [1.0]], np.float32)
ONE = Schema(("x",), (), 0, "")
TWO = Schema(("x",), (), 0, "", labels=("a", "b"))


@pytest.mark.parametrize(("given", "want"), [((), [1, 5, 5]), (([2.0, 3.0, 0.5],), [2, 15, 2.5])])
def test_weights_of_positives_are_multiplied(given, want):
    batch = ({"x": LABELS}, LABELS, *[np.array(w, np.float32) for w in given])
    dataset = weighted(tf.data.Dataset.from_tensors(batch), 5.0)
    features, labels, weights = next(iter(dataset))
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal(features["x"], LABELS)
    np.testing.assert_array_equal(weights, want)


def test_a_weight_of_1_changes_nothing():
    dataset = tf.data.Dataset.from_tensors(({"x": LABELS}, LABELS))
    assert weighted(dataset, 1.0) is dataset


def test_the_corrected_probability_is_that_of_he_et_al():
    inputs = tf.keras.Input([1])
    model = tf.keras.Model(inputs, tf.keras.layers.Activation("linear")(inputs), name="m")
    p = np.array([[0.001], [0.2], [0.5], [0.99]], np.float32)
    fixed = corrected(model, RunConfig("", negative_rate=0.1))
    np.testing.assert_allclose(fixed(p), p / (p + (1 - p) / 0.1), rtol=1e-4)
    assert fixed.name == "m"
    assert corrected(model, RunConfig("")) is model


def test_without_a_rate_all_examples_are_used(libsvm):
    source = open_source(libsvm)
    assert training_examples(RunConfig(""), source) is source
    sampled = training_examples(RunConfig("", negative_rate=0.5), source)
    assert sampled.num_examples() < source.num_examples()


@pytest.mark.parametrize(
    ("config", "schema", "message"),
    [
        (RunConfig("", positive_weight=0), ONE, "--positive-weight must be positive, got 0"),
        (RunConfig("", positive_weight=float("inf")), ONE, "--positive-weight must be positive"),
        (RunConfig("", negative_rate=0), ONE, "--negative-rate must be greater than 0"),
        (RunConfig("", negative_rate=1.1), ONE, "--negative-rate must be .* at most 1, got 1.1"),
        (
            RunConfig("", positive_weight=2),
            TWO,
            "--positive-weight needs one label, .* the schema has a, b",
        ),
        (RunConfig("", negative_rate=0.5), TWO, "--negative-rate needs one label"),
    ],
)
def test_wrong_options_are_errors_of_the_user(config, schema, message):
    with pytest.raises(UserError, match=message):
        check_balance(config, schema)


def test_defaults_are_right():
    check_balance(RunConfig(""), ONE)


def test_the_first_logit_is_finite_whatever_the_weights_are():
    positives = [0.0, 1.0, 1e30, 2e30]
    assert np.isfinite(smoothed_logits(positives, 2e30)).all()
    assert smoothed_logits([1.0], 2.0) == [0.0]


def test_a_rate_that_leaves_no_validation_data_is_named(tmp_path):
    (tmp_path / "d.csv").write_text("label,x\n" + "0,1\n" * 200)
    source = open_source(f"csv:{tmp_path / 'd.csv'}", schema=ONE)
    config = RunConfig("", validation="random", negative_rate=1e-9)
    with pytest.raises(UserError, match="--negative-rate 1e-09: nothing is left of"):
        validation_parts(config, source)
