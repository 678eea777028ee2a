"""A model's training step as one program, and the layer that prevents compilation."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, models, optimizers
from twml_ops.cli.compile_check import load_model
from twml_ops.data import Schema
from twml_ops.tpu import chips, step
from twml_ops.tpu.check import tables
from twml_ops.training.errors import UserError

N, B = 50, 4


class Picks(tf.keras.layers.Layer):
    """Selects the rows with a positive first number, so that a shape depends on the data."""

    def call(self, x):
        """Adds the sum of the selected rows."""
        return x + tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0))

    def compute_output_shape(self, shape):
        """The shape of x."""
        return shape


class Python(tf.keras.layers.Layer):
    """Calls a Python function."""

    def call(self, x):
        """Doubles x."""
        doubled = tf.numpy_function(lambda v: 2 * v, [x], tf.float32)
        return tf.ensure_shape(doubled, x.shape)

    def compute_output_shape(self, shape):
        """The shape of x."""
        return shape


class Fails(tf.keras.layers.Layer):
    """Raises while a batch of B examples is traced."""

    def call(self, x):
        """Rejects batches of B examples."""
        if x.shape[0] == B:
            raise RuntimeError("no such batch")
        return x

    def compute_output_shape(self, shape):
        """The shape of x."""
        return shape


def model(*middle):
    inputs = [tf.keras.Input([5], dtype=t) for t in ("int64", "float32")]
    x = layers.MaxNorm(N, name="norm")(inputs)
    x = layers.SparseLinear(3, N, "relu", name="table")(x)
    for layer in middle:
        x = layer(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, "sigmoid", name="head")(x))


def hlo(made):
    step.prepare_model(made)
    return step.lower_to_hlo(step.training_step(made), made, step.zero_batch(made, B))


def test_a_step_with_static_shapes_is_lowered():
    assert len(hlo(model())) > 1000


@pytest.mark.parametrize(
    ("layer", "why"),
    [(Picks, "depends on the data"), (Python, "PyFunc"), (Fails, "no such batch")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_layer_that_does_not_compile_is_named(layer, why):
    with pytest.raises(step.NotCompilableError, match=why) as e:
        hlo(model(tf.keras.layers.Dense(3, name="before"), layer(name="culprit")))
    assert e.value.problem.layer == "culprit"


def assert_step_equals_fit(build, features, labels):
    ours, theirs = build(), build()
    theirs.set_weights(ours.get_weights())
    before = ours.get_weights()
    for made in (ours, theirs):
        made.compile(optimizers.Adagrad(0.1), "binary_crossentropy", jit_compile=False)
    ours.optimizer.build(ours.trainable_variables)
    on_device = tf.nest.map_structure(tf.constant, features)
    step.training_step(ours)(on_device, tf.constant(labels))
    theirs.fit(features, labels, batch_size=len(labels), verbose=0)
    for got, want in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert any((a != b).any() for a, b in zip(before, ours.get_weights(), strict=True))


def test_the_step_equals_a_step_of_fit():
    rng = np.random.default_rng(0)
    features = [rng.integers(0, N, (B, 5)), rng.normal(size=(B, 5)).astype(np.float32)]
    labels = np.array([[0.0], [1.0], [1.0], [0.0]], np.float32)
    assert_step_equals_fit(model, features, labels)


@pytest.mark.one_tf
def test_the_step_of_a_deep_and_cross_network_equals_a_step_of_fit():
    rng = np.random.default_rng(0)
    rows = 60
    features = {
        "continuous": rng.normal(size=(rows, 2)).astype(np.float32),
        "continuous_present": rng.random((rows, 2)) < 0.8,
        "categorical": rng.integers(-1, 5, (rows, 3)),
        "row_keys": np.arange(rows),
    }
    labels = rng.integers(0, 2, (rows, 1)).astype(np.float32)
    schema = Schema(("a", "b"), ("c", "d", "e"), 0, "label")
    data = tf.data.Dataset.from_tensors((features, labels))

    def build():
        return models.dcn(
            schema, data, crosses=["c*d"], hidden=[8], dropout=0, embedding_dropout=0, trees=False
        )

    assert_step_equals_fit(build, features, labels)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_the_steps_of_all_models_are_lowered(name):
    assert len(hlo(load_model(name))) > 1000


def test_batches_are_padded_and_have_static_shapes():
    ragged = [
        tf.keras.Input([None], dtype=t, ragged=True, name=n)
        for t, n in (("int64", "ids"), ("float32", "values"))
    ]
    x = layers.SparseLinear(3, N)(ragged)
    dense = tf.keras.Input([7], name="dense")
    made = tf.keras.Model([*ragged, dense], tf.keras.layers.Concatenate()([x, dense]))
    features, labels = step.zero_batch(made, B, max_entries=9)
    assert [tuple(f.shape) for f in tf.nest.flatten(features)] == [(B, 9), (B, 9), (B, 7)]
    assert tuple(labels.shape) == (B, 10)


def test_a_sparse_input_is_rejected():
    inputs = tf.keras.Input([N], sparse=True, name="bag")
    made = tf.keras.Model(inputs, layers.SparseLinear(3, N)(inputs))
    with pytest.raises(ValueError, match="bag.* is sparse: make it a padded pair"):
        step.zero_batch(made, B)


def test_the_memory_of_tables_includes_slots():
    made = model()
    made.compile(optimizers.LazyAdam(0.1), "binary_crossentropy", jit_compile=False)
    (table,) = tables(made)
    assert (table.name, table.rows, table.units) == ("table", N, 3)
    assert table.bytes == N * 3 * 4 * 3


def test_unknown_chips_and_models_are_rejected():
    with pytest.raises(ValueError, match="unknown chip 'v1': expected one of v4, v5e"):
        chips.get_chip("v1")
    with pytest.raises(UserError, match="no model 'resnet': expected one of dcn, deepfm, "):
        load_model("resnet")
