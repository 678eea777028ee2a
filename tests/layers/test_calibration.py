"""Isotonic calibration and Platt scaling."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from twml_ops.layers import IsotonicCalibration, PlattScaling
from twml_ops.ops._tape import tf_variable

BOTH = [IsotonicCalibration, PlattScaling]
both = pytest.mark.parametrize("kind", BOTH)


def examples(seed, n, units=None):
    """Scores whose logits are too large by a factor of two, and labels."""
    rng = np.random.default_rng(seed)
    shape = (n,) if units is None else (n, units)
    logits = rng.normal(-1, 1, shape)
    labels = rng.random(shape) < 1 / (1 + np.exp(-logits))
    scores = 1 / (1 + np.exp(-2 * logits))
    return scores.astype(np.float32), labels.astype(np.float32), rng.random(shape) + 0.1


def fitted(kind, units=None, seed=0, n=300, **kwargs):
    layer = kind(units or 1, **kwargs)
    layer.adapt(*examples(seed, n, units))
    return layer


PROBES = np.array([-np.inf, -1, 0, 1e-9, 1e-3, 0.1, 0.35, 0.5, 0.9, 1 - 1e-7, 1, 7, np.inf], "f")


@given(
    n=st.integers(1, 80),
    seed=st.integers(0, 1000),
    digits=st.integers(1, 4),
    weighted=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_unsmoothed_isotonic_equals_scikit_learn(n, seed, digits, weighted):
    scores, labels, weights = examples(seed, n)
    scores = np.round(scores, digits)
    weights = weights if weighted else None
    layer = IsotonicCalibration(smoothing=0)
    layer.adapt(scores, labels, weights)
    want = IsotonicRegression(out_of_bounds="clip").fit(scores.astype(float), labels, weights)
    probes = np.concatenate([scores, PROBES[1:-1]])
    np.testing.assert_allclose(layer(probes), want.predict(probes.astype(float)), atol=2e-6)


@given(n=st.integers(2, 60), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_isotonic_is_non_decreasing_even_with_rounding(n, seed):
    layer = fitted(IsotonicCalibration, seed=seed, n=n)
    corners = layer.state_variables[0].numpy()[0]
    near = [np.nextafter(corners, np.float32(side)) for side in (-1, 2)]
    ladder = np.sort(np.concatenate([PROBES, corners, *near]).astype(np.float32))
    assert (np.diff(layer(ladder)) >= 0).all()


def test_calibrated_data_keep_their_mean():
    scores, labels, weights = examples(1, 2000)
    layer = IsotonicCalibration()
    layer.adapt(scores, labels, weights)
    assert abs(scores.mean() - labels.mean()) > 0.02
    got = np.average(layer(scores), weights=weights)
    assert got == pytest.approx(np.average(labels, weights=weights), abs=1e-3)


def test_with_smoothing_no_probability_is_0_or_1():
    scores = np.array([0.1, 0.2, 0.8, 0.9], np.float32)
    layer = IsotonicCalibration(smoothing=1)
    layer.adapt(scores, [0, 0, 1, 1])
    np.testing.assert_allclose(layer(scores), [1 / 6, 1 / 6, 5 / 6, 5 / 6], rtol=1e-6)
    sharp = IsotonicCalibration(smoothing=0)
    sharp.adapt(scores, [0, 0, 1, 1])
    np.testing.assert_array_equal(sharp(scores), [0, 0, 1, 1])


def test_tiny_scores_are_distinguished():
    scores = np.float32(1e-8) * np.arange(1, 9, dtype=np.float32)
    layer = IsotonicCalibration(smoothing=0)
    layer.adapt(scores, [0, 0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(layer(scores), [0, 0, 0, 0, 1, 1, 1, 1])


def test_platt_is_logistic_regression_on_smoothed_labels():
    scores, labels, weights = examples(2, 400)
    layer = PlattScaling()
    layer.adapt(scores, labels, weights)
    positive, negative = np.sum(weights * labels), np.sum(weights * (1 - labels))
    targets = np.where(labels == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))
    x = np.log(scores / (1 - scores.astype(np.float64)))
    reference = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(
        np.tile(x, 2)[:, None],
        np.repeat([1, 0], len(x)),
        np.concatenate([weights * targets, weights * (1 - targets)]),
    )
    a, b, _ = (v.numpy()[0] for v in layer.state_variables)
    assert a == pytest.approx(reference.coef_[0, 0], rel=1e-4)
    assert b == pytest.approx(reference.intercept_[0], rel=1e-4, abs=1e-5)
    assert a == pytest.approx(0.5, abs=0.15)  # undoes the factor of two


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_platt_takes_logits_of_any_unit(unit):
    scores, labels, _ = examples(3, 500)
    logits = np.log(scores / (1 - scores.astype(np.float64)))
    plain, scaled = PlattScaling(from_logits=True), PlattScaling(from_logits=True)
    plain.adapt(logits, labels)
    scaled.adapt(logits * unit, labels)
    np.testing.assert_allclose(scaled(logits * unit), plain(logits), rtol=1e-4)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0]])
def test_platt_has_a_solution_for_any_labels(labels):
    layer = PlattScaling()
    layer.adapt([0.1, 0.2, 0.7, 0.9], labels)
    out = layer(PROBES).numpy()
    assert ((out > 0) & (out < 1)).all()
    assert abs(out[-1] - out[0]) > 0.3 or len(set(labels)) == 1


@both
def test_a_constant_score_becomes_the_base_rate(kind):
    layer = kind()
    layer.adapt(np.full(400, 0.9), np.arange(400) < 100)
    np.testing.assert_allclose(layer(PROBES), 0.25, atol=5e-3)


@both
def test_one_example_is_enough(kind):
    layer = kind()
    layer.adapt([0.3], [1.0])
    assert np.isfinite(layer(PROBES)).all()


@both
def test_each_unit_has_its_own_curve(kind):
    scores, labels, weights = examples(4, 200, units=3)
    together = fitted(kind, 3, seed=4, n=200)
    for unit in range(3):
        alone = kind()
        alone.adapt(scores[:, unit], labels[:, unit], weights[:, unit])
        np.testing.assert_allclose(together(scores)[:, unit], alone(scores[:, unit]), rtol=1e-6)


@both
@pytest.mark.parametrize("shape", [(13,), (13, 1), (0,), (0, 1), (1, 13, 1)])
def test_the_output_has_the_shape_of_the_input(kind, shape):
    layer = fitted(kind)
    scores = PROBES[: np.prod(shape)].reshape(shape)
    assert layer(scores).shape == shape
    np.testing.assert_allclose(np.ravel(layer(scores)), layer(scores.ravel()), rtol=1e-6)


@both
def test_a_nan_score_is_nan_or_the_base_rate(kind):
    _, labels, weights = examples(0, 300, units=2)
    probe = np.array([[np.nan, 0.5], [0.5, np.nan]], np.float32)
    out = fitted(kind, 2)(probe).numpy()
    np.testing.assert_array_equal(np.isnan(out), np.isnan(probe))
    out = fitted(kind, 2, nan="base_rate")(probe).numpy()
    rates = [np.average(labels[:, u], weights=weights[:, u]) for u in range(2)]
    np.testing.assert_allclose([out[0, 0], out[1, 1]], rates, rtol=1e-6)
    np.testing.assert_allclose(out[0, 1], fitted(kind, 2)(probe)[0, 1], rtol=1e-6)


@both
def test_nan_scores_and_weights_of_zero_are_not_fitted_on(kind):
    scores, labels, weights = examples(5, 100)
    want = kind()
    want.adapt(scores[:50], labels[:50], weights[:50])
    got = kind()
    weights[50:75], scores[75:] = 0, np.nan
    got.adapt(scores, labels, weights)
    for a, b in zip(got.state_variables, want.state_variables, strict=True):
        np.testing.assert_array_equal(a, b)


@both
@pytest.mark.parametrize("jit_compile", [False, True])
def test_in_a_function_with_unknown_sizes_equals_eager(kind, jit_compile):
    layer = fitted(kind, 2)
    spec = tf.TensorSpec([None, 2], tf.float32)
    call = tf.function(layer.__call__, input_signature=[spec], jit_compile=jit_compile)
    scores = np.stack([PROBES, PROBES[::-1]], 1)
    scores[2] = np.nan
    np.testing.assert_allclose(call(scores), layer(scores), rtol=1e-6)


def model(layer):
    inputs = tf.keras.Input([3])
    scores = tf.keras.layers.Dense(layer.units, activation="sigmoid")(inputs)
    return tf.keras.Model(inputs, layer(scores))


X = np.random.default_rng(9).normal(size=(5, 3)).astype(np.float32)


@both
@pytest.mark.parametrize("units", [1, 3])
def test_a_keras_file_keeps_the_state_bit_for_bit(kind, units, tmp_path):
    m = model(fitted(kind, None if units == 1 else units, nan="base_rate"))
    m.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    assert loaded.layers[-1].get_config() == m.layers[-1].get_config()
    for a, b in zip(loaded.layers[-1].state_variables, m.layers[-1].state_variables, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(loaded(X), m(X), rtol=1e-6)


@both
def test_a_weights_file_keeps_the_state(kind, tmp_path):
    m = model(fitted(kind))
    m.save_weights(tmp_path / "w.weights.h5")
    other = tf.keras.Model.from_config(m.get_config())
    other.load_weights(tmp_path / "w.weights.h5")
    for a, b in zip(other.layers[-1].state_variables, m.layers[-1].state_variables, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(other(X), m(X), rtol=1e-6)


@both
def test_a_checkpoint_keeps_the_state_whatever_its_size(kind, tmp_path):
    layer = fitted(kind, 2)
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "c"))
    for other in (kind(2), fitted(kind, 2, seed=8, n=20)):
        tf.train.Checkpoint(layer=other).restore(path).assert_consumed()
        for a, b in zip(other.state_variables, layer.state_variables, strict=True):
            np.testing.assert_array_equal(a, b)


@both
def test_a_saved_model_keeps_the_state_bit_for_bit(kind, tmp_path):
    m = model(fitted(kind))
    module = tf.Module()
    module.model = m
    module.state = [tf_variable(v) for v in m.layers[-1].state_variables]
    spec = tf.TensorSpec([None, 3], tf.float32)
    module.serve = tf.function(lambda x: m(x), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for a, b in zip(loaded.state, module.state, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(loaded.serve(X), module.serve(X), rtol=1e-6)


@both
def test_a_call_before_fit_is_an_error(kind):
    layer = kind()
    assert not layer.adapted
    with pytest.raises(ValueError, match=f"{kind.__name__} '.*' is not adapted: call adapt"):
        layer(PROBES)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not adapted"):
        tf.function(lambda x: layer(x))(tf.constant([0.5]))
    layer.adapt([0.5, 0.6], [0, 1])
    assert layer.adapted


@both
def test_mixed_precision_does_not_change_scores(kind):
    layer = fitted(kind, name="plain")
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        mixed = fitted(kind, name="plain")
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert mixed(PROBES).dtype == tf.float32
    np.testing.assert_allclose(mixed(PROBES), layer(PROBES), rtol=1e-6)


@both
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.1, 0.2], [0]), r"labels must have the shape of the scores, \(2,\), got \(1,\)"),
        (([[0.1, 0.2]], [[0, 1]]), r"scores must have the shape \[n\] or \[n, 1\], got \(1, 2\)"),
        (([0.1, 0.2], [0, 1], [1.0]), r"sample_weight must have the shape \(2,\)"),
        (([0.1, np.inf], [0, 1]), r"scores\[1, 0\] = inf must not be infinite"),
        (([0.1, 0.2], [0, 2]), r"labels\[1, 0\] = 2.0 must be in \[0, 1\]"),
        (([0.1, 0.2], [0, np.nan]), r"labels\[1, 0\] = nan must be in"),
        (([0.1, 0.2], [0, 1], [1, -1]), r"sample_weight\[1, 0\] = -1.0 must be finite"),
        (([np.nan], [1]), r"scores\[:, 0\] must have an example to fit on"),
        (([], []), r"scores\[:, 0\] must have an example to fit on"),
    ],
)
def test_bad_data_are_refused_and_change_nothing(kind, arguments, message):
    layer = fitted(kind)
    before = layer(PROBES).numpy()
    with pytest.raises(ValueError, match=message):
        layer.adapt(*arguments)
    np.testing.assert_array_equal(layer(PROBES), before)


@both
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"units": 0}, "units must be a positive integer, got 0"),
        ({"units": 1.5}, "units must be a positive integer, got 1.5"),
        ({"nan": "zero"}, "nan must be 'propagate' or 'base_rate', got 'zero'"),
    ],
)
def test_arguments_out_of_range_are_refused(kind, kwargs, message):
    with pytest.raises(ValueError, match=message):
        kind(**kwargs)


@pytest.mark.parametrize("smoothing", [-1, np.nan, np.inf])
def test_bad_smoothing_is_refused(smoothing):
    with pytest.raises(ValueError, match="smoothing must be finite and not negative"):
        IsotonicCalibration(smoothing=smoothing)


@both
@pytest.mark.parametrize(("units", "shape"), [(1, (4, 2)), (2, (4,)), (2, (4, 3)), (1, ())])
def test_scores_of_another_shape_are_refused(kind, units, shape):
    layer = fitted(kind, None if units == 1 else units)
    with pytest.raises(ValueError, match="inputs must have the shape"):
        layer(np.zeros(shape, np.float32))


def test_without_scikit_learn_only_isotonic_fitting_fails_and_says_what_to_do(monkeypatch):
    layer = fitted(IsotonicCalibration)
    monkeypatch.setitem(sys.modules, "sklearn.isotonic", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r'pip install "twml_ops\[calibrate\]"'):
        layer.adapt([0.5], [1.0])
    assert np.isfinite(layer(PROBES)).all()
    fitted(PlattScaling)
