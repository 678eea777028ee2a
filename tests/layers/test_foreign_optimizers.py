"""Keras' own optimizers on the tables of our layers: their warning, and where they are wrong."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import KERAS_3
from twml_ops import layers, optimizers
from twml_ops.layers import _weights

pytestmark = pytest.mark.usefixtures("fresh_keras")

N, WIDTH = 40, 4
IDS, LABELS = np.zeros((8, WIDTH), np.int64), np.ones((8, 1), np.float32)
LAYERS = {
    "sparse_linear": lambda: layers.SparseLinear(3, N, name="big"),
    "grouped": lambda: layers.GroupedSparseLinear(
        {"a": layers.SparseTable(N, 3), "b": layers.SparseTable(N, 2)}, name="big"
    ),
    "field_embedding": lambda: layers.FieldEmbedding([N] * WIDTH, 3, name="big"),
    "dynamic": lambda: layers.DynamicSparseLinear(3, N, name="big"),
}


@pytest.fixture(autouse=True)
def small_tables_are_large(monkeypatch):
    monkeypatch.setattr(_weights, "LARGE_TABLE_BYTES", N * 3 * 4)


def model_of(kind, optimizer, **changes):
    layer = LAYERS[kind]()
    for name, value in changes.items():
        setattr(layer, name, value)
    inputs = tf.keras.Input([WIDTH], dtype="int64")
    hidden = layer({"a": inputs, "b": inputs})["a"] if kind == "grouped" else layer(inputs)
    outputs = tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(hidden))
    model = tf.keras.Model(inputs, outputs)
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def trained(model):
    """The warnings of a prediction, of an epoch and of a step."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.predict_on_batch(IDS)
        assert not found
        model.fit(IDS, LABELS, batch_size=4, verbose=0)
        model.train_on_batch(IDS, LABELS)
    return [str(w.message) for w in found if "every row" in str(w.message)]


def test_a_compiled_training_is_warned_of_once():
    model = model_of("sparse_linear", "adam")
    model.compile("adam", "mse")
    assert len(trained(model)) == 1


@pytest.mark.parametrize("kind", LAYERS)
def test_a_dense_optimizer_of_a_large_table_is_one_warning_with_the_line_to_write(kind):
    (warning,) = trained(model_of(kind, "adam"))
    rows = N * (WIDTH if kind == "field_embedding" else 1)
    for text in ("Adam", "big", f"{rows} rows"):
        assert text in warning
    assert "model.compile(twml_ops.optimizers.LazyAdam(...), ...)" in warning


def test_custom_training_steps_are_warned_of_once():
    model = model_of("sparse_linear", "sgd")
    optimizer = tf.keras.optimizers.Adagrad(0.1) if KERAS_3 else tf.keras.optimizers.Adam(0.1)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(IDS, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    with pytest.warns(UserWarning, match="every row of the table"):
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
        tf.function(step)()


def composite():
    return optimizers.CompositeOptimizer(
        tf.keras.optimizers.Adam(), {"big": optimizers.LazyAdam(0.01)}
    )


QUIET = {
    "ours": lambda: optimizers.Adagrad(0.1),
    "loss_scale": lambda: optimizers.LossScaleOptimizer(optimizers.LazyAdam(0.01)),
    "keras_loss_scale": lambda: tf.keras.mixed_precision.LossScaleOptimizer(
        optimizers.LazyAdam(0.01)
    ),
    "composite": composite,
    "rows_only": lambda: (
        tf.keras.optimizers.SGD(0.1) if KERAS_3 else tf.keras.optimizers.Adagrad(0.1)
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_optimizers_that_update_rows_are_no_warning(name):
    assert trained(model_of("sparse_linear", QUIET[name]())) == []


def test_small_and_frozen_tables_are_no_warning(monkeypatch):
    assert trained(model_of("sparse_linear", "adam", trainable=False)) == []
    monkeypatch.undo()
    assert trained(model_of("sparse_linear", "adam")) == []


def weights_after_updates(optimizer, calls, dense):
    """A table after three updates by its gradient, or by that as a dense tensor."""
    tf.keras.utils.set_random_seed(3)
    layer, rng = layers.SparseLinear(3, N), np.random.default_rng(0)
    for _ in range(3):
        batches = [tf.constant(rng.integers(0, N, (16, WIDTH))) for _ in range(calls)]
        batches = [tf.concat([batch, batch[:, :1]], axis=1) for batch in batches]  # repeats an id
        with tf.GradientTape() as tape:
            outputs = sum((i + 1) * layer(batch) for i, batch in enumerate(batches))
            loss = tf.reduce_mean((outputs - 1) ** 2)
        gradients = tape.gradient(loss, layer.trainable_variables)
        if dense:
            gradients = [tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
    return np.array(layer.kernel)


@pytest.mark.parametrize(
    ("make", "calls", "right"),
    [
        (lambda: tf.keras.optimizers.Adam(0.1), 1, True),
        (lambda: tf.keras.optimizers.Adam(0.1), 2, not KERAS_3),
        (lambda: tf.keras.optimizers.Adagrad(0.1), 2, not KERAS_3),
        (lambda: tf.keras.optimizers.SGD(0.1), 2, True),
        (lambda: tf.keras.optimizers.Adam(0.1, clipnorm=0.01), 1, True),
        (lambda: tf.keras.optimizers.Adam(0.1, clipnorm=0.01), 2, False),
        (lambda: optimizers.Adagrad(0.1), 2, True),
        (lambda: optimizers.Adagrad(0.1, clipnorm=0.01), 2, True),
    ],
)
def test_keras_optimizers_are_wrong_only_if_a_layer_is_called_more_than_once(make, calls, right):
    """The section 'In Keras' of docs/train.md describes these cases."""
    sparse, dense = (weights_after_updates(make(), calls, d) for d in (False, True))
    assert (np.abs(sparse - dense).max() < 1e-5) == right
