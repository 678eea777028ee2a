"""`FieldLogarithms` against standardized logarithms in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, export
from twml_ops.layers import FieldLogarithms


def data(rows=300, seed=0):
    """Numbers with outliers and of both signs, and constant and absent ones."""
    rng = np.random.default_rng(seed)
    signed = rng.lognormal(0, 3, rows) * rng.choice([-1, 1], rows)
    numbers = np.stack([signed, 1e-3 * rng.random(rows), np.ones(rows), np.ones(rows)], axis=1)
    present = rng.random((rows, 4)) < [0.8, 0.9, 0.7, 0]
    return numbers.astype(np.float32), present


def adapted(name="logarithms"):
    layer = FieldLogarithms(4, name=name)
    numbers, present = data()
    layer.adapt([(numbers[i : i + 50], present[i : i + 50]) for i in range(0, 300, 50)])
    return layer


def reference(numbers, present):
    train, there = (x.astype(np.float64) for x in data())
    found = np.zeros(numbers.shape)
    for c in range(numbers.shape[1]):
        y = np.sign(train[:, c]) * np.log1p(np.abs(train[:, c]))
        y = y[there[:, c] > 0]
        x = np.sign(numbers[:, c]) * np.log1p(np.abs(numbers[:, c].astype(np.float64)))
        if len(y) and y.std() > 1e-9:
            found[:, c] = np.clip((x - y.mean()) / y.std(), -5, 5)
    return np.where(present, found, 0)


def test_logarithms_are_standardized_and_those_of_missing_and_constant_fields_are_zero():
    layer = adapted()
    numbers, present = data(40, seed=1)
    numbers[:3, 0] = [0, 1e30, -1e30]
    present[:3, 0] = True
    spec = [[tf.TensorSpec([None, 4]), tf.TensorSpec([None, 4], tf.bool)]]
    for call in (layer, tf.function(layer, input_signature=spec)):
        found = call([tf.constant(numbers), tf.constant(present)])
        assert found.dtype == tf.float32
        np.testing.assert_allclose(found, reference(numbers, present), rtol=2e-4, atol=2e-4)
    assert not found.numpy()[:, 2:].any()


def test_infinite_numbers_are_not_counted_and_clipped():
    numbers = np.float32([[1], [np.inf], [3], [-np.inf]])
    layer = FieldLogarithms(1)
    layer.adapt([(numbers, np.ones((4, 1), bool))])
    found = layer([tf.constant(numbers), tf.ones([4, 1], tf.bool)]).numpy()[:, 0]
    np.testing.assert_allclose(found, [-1, 5, 1, -5], rtol=1e-5)


def test_infinite_numbers_of_a_constant_field_are_zero(tmp_path):
    layer = adapted()
    numbers = tf.constant(np.float32([[1, 1, np.inf, -np.inf]]))
    found = layer([numbers, tf.ones([1, 4], tf.bool)]).numpy()
    assert not found[:, 2:].any()
    inputs = [tf.keras.Input([4], name=n, dtype=d) for n, d in (("x", "float32"), ("p", "bool"))]
    export.to_scorer(tf.keras.Model(inputs, layer(inputs)), tmp_path / "scorer")
    batch = {"x": numbers.numpy(), "p": np.ones([1, 4], bool)}
    scores = core.Scorer.load(tmp_path / "scorer").predict(batch)
    np.testing.assert_allclose(scores, found, rtol=1e-5, atol=1e-6)


def test_missing_numbers_may_be_nan():
    numbers, present = data()
    spoiled = np.where(present, numbers, np.nan)
    layer = FieldLogarithms(4)
    layer.adapt([(spoiled, present)])
    found = layer([tf.constant(spoiled), tf.constant(present)])
    np.testing.assert_array_equal(found, adapted()([tf.constant(numbers), tf.constant(present)]))


def test_parts_of_the_data_are_merged():
    numbers, present = data()
    layer = FieldLogarithms(4)
    parts = [layer.new_moments() for _ in range(3)]
    for i, part in enumerate(parts):
        part.update(numbers[i::3], present[i::3])
    parts[0].merge(*parts[1:])
    layer.adapt_from_moments(parts[0])
    for one, other in zip(layer.get_weights(), adapted().get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_model_comes_back_from_a_file_as_a_clone_and_from_exports(tmp_path):
    inputs = [tf.keras.Input([4], name="x"), tf.keras.Input([4], dtype="bool", name="there")]
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(adapted()(inputs)))
    numbers, present = data(7, seed=2)
    batch = [tf.constant(numbers), tf.constant(present)]
    want = model(batch)
    path = str(tmp_path / "m.keras")
    model.save(path)
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for again in (tf.keras.models.load_model(path), clone):
        np.testing.assert_allclose(again(batch), want, rtol=1e-6)
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(tmp_path / "stock").signatures["serving_default"]
    (got,) = served(x=batch[0], there=batch[1]).values()
    np.testing.assert_allclose(got, want, rtol=1e-6)
    export.to_scorer(model, tmp_path / "scorer")
    got = core.Scorer.load(tmp_path / "scorer").predict({"x": numbers, "there": present})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fields", [0, -1, 1.5, "two"])
def test_bad_options_are_refused(fields):
    with pytest.raises(ValueError, match="num_fields must be"):
        FieldLogarithms(fields)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\[B, 4\]"):
        adapted()([tf.zeros([2, 3]), tf.ones([2, 3], tf.bool)])
    with pytest.raises(ValueError, match=r"\[B, 4\]"):
        FieldLogarithms(4).adapt([(np.zeros((2, 3)), np.ones((2, 3), bool))])
