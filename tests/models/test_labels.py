"""Several labels and sample weights in the models of the package."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.models.test_models import features_of
from twml_ops import models
from twml_ops.data import Schema
from twml_ops.models import SplitLabels
from twml_ops.models._labels import base_logits

Y = np.array([[1, 0], [0, 0], [1, 1], [1, 0]], np.float32)
W = np.array([1, 2, 3, 4], np.float32)


def logit(p):
    return math.log(p / (1 - p))


def test_base_logits_are_those_of_the_shares_of_positives():
    one = tf.data.Dataset.from_tensor_slices(({}, Y[:, :1])).batch(3)
    assert base_logits(one, ["label"]) == pytest.approx([logit(4 / 6)])
    labels = {"click": Y[:, :1], "sale": Y[:, 1:]}
    several = tf.data.Dataset.from_tensor_slices(({}, labels, W)).batch(3)
    want = [logit((8 + 1) / 12), logit((3 + 1) / 12)]
    assert base_logits(several, ["click", "sale"]) == pytest.approx(want)


def test_sparse_mlp_has_an_output_for_each_label_and_trains_with_weights(tmp_path):
    schema = Schema(("a", "b"), ("c", "d"), 50, "x", labels=("click", "sale"))
    rng = np.random.default_rng(0)
    labels = {n: rng.integers(0, 2, (32, 1)).astype(np.float32) for n in schema.labels}
    weights = rng.random(32).astype(np.float32)
    slices = (features_of(schema, 32), labels, weights)
    data = tf.data.Dataset.from_tensor_slices(slices).batch(8)
    tf.keras.utils.set_random_seed(0)
    model = models.sparse_mlp(schema, data, units=4, hidden=(3,), categorical_bits=8)
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    assert np.isfinite(model.fit(data, verbose=0).history["loss"]).all()
    features = features_of(schema, 5, seed=3)
    found = model(features)
    assert {n: tuple(p.shape) for n, p in found.items()} == {"click": (5, 1), "sale": (5, 1)}
    path = str(tmp_path / "m.keras")
    model.save(path)
    again = tf.keras.models.load_model(path, compile=False)(features)
    for label in schema.labels:
        np.testing.assert_allclose(again[label], found[label], rtol=1e-6)


def test_split_labels_returns_the_columns_in_graphs_of_unknown_batch_size():
    layer = SplitLabels(["a", "b"])
    graph = tf.function(layer, input_signature=[tf.TensorSpec([None, 2])])
    for call in (layer, graph):
        found = call(tf.constant(Y))
        np.testing.assert_array_equal(found["b"], Y[:, 1:])
    assert SplitLabels.from_config(layer.get_config()).labels == ["a", "b"]


def test_split_labels_refuses_equal_names_and_other_widths():
    with pytest.raises(ValueError, match="different names"):
        SplitLabels(["a", "a"])
    with pytest.raises(ValueError, match=r"\[B, 2\]"):
        SplitLabels(["a", "b"])(tf.zeros([4, 3]))
