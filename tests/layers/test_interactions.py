"""`DotInteraction` against products one by one."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from twml_ops.layers import DotInteraction

X = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)


def test_it_is_the_dot_product_of_every_pair_in_order():
    pairs = list(itertools.combinations(range(4), 2))
    want = np.stack([(X[:, i] * X[:, j]).sum(axis=1) for i, j in pairs], axis=1)
    graph = tf.function(DotInteraction(), input_signature=[tf.TensorSpec([None, 4, 3])])
    for call in (DotInteraction(), graph):
        np.testing.assert_allclose(call(tf.constant(X)), want, rtol=1e-5, atol=1e-6)


def test_it_knows_its_shape_and_trains_and_comes_back_from_a_file(tmp_path):
    inputs = tf.keras.Input((4, 3))
    products = DotInteraction()(inputs)
    assert tuple(products.shape) == (None, 6)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(products))
    model.compile("sgd", "mse")
    assert np.isfinite(model.fit(X, np.ones(5), verbose=0).history["loss"]).all()
    path = str(tmp_path / "m.keras")
    model.save(path)
    np.testing.assert_allclose(tf.keras.models.load_model(path)(X), model(X), rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 1, 3), (5, 3)])
def test_inputs_without_pairs_are_refused(shape):
    with pytest.raises(ValueError, match=r"\[B, F, D\]"):
        DotInteraction()(tf.zeros(shape))
