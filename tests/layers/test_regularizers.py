"""Regularizers and constraints have the same names in all layers with tables."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers
from twml_ops.layers import SparseTable

pytestmark = pytest.mark.usefixtures("fresh_keras")

N, D = 20, 3
IDS = np.array([[1, 4], [4, 7]])
INITIAL = tf.keras.initializers.Constant(0.5)
PENALTY = tf.keras.regularizers.L1L2(l1=0.25, l2=0.5)

LAYERS = {
    "sparse_linear": lambda r: layers.SparseLinear(
        D, N, kernel_initializer=INITIAL, kernel_regularizer=r
    ),
    "by_row": lambda r: layers.SparseLinear(
        D, N, kernel_initializer=INITIAL, kernel_regularizer=r, num_partitions=2
    ),
    "by_column": lambda r: layers.SparseLinear(
        *(D, N),
        kernel_initializer=INITIAL,
        kernel_regularizer=r,
        num_partitions=3,
        partition_axis="column",
    ),
    "bfloat16": lambda r: layers.SparseLinear(
        D, N, kernel_initializer=INITIAL, kernel_regularizer=r, kernel_dtype="bfloat16"
    ),
    "grouped": lambda r: layers.GroupedSparseLinear(
        {"t": SparseTable(N, D, INITIAL, regularizer=r)}, {"f": "t", "g": "t"}
    ),
    "dynamic": lambda r: layers.DynamicSparseLinear(
        D, N, kernel_initializer=INITIAL, kernel_regularizer=r
    ),
    "field_embedding": lambda r: layers.FieldEmbedding(
        [N, N], D, embeddings_initializer=INITIAL, embeddings_regularizer=r
    ),
}


def called(layer, **options):
    if isinstance(layer, layers.GroupedSparseLinear):
        return layer({"f": IDS[:, :1], "g": IDS[:, 1:]}, **options)
    return layer(tf.constant(IDS), **options)


def rows_read(kind):
    return 4 if kind == "field_embedding" else 3  # the fields of an embedding share no row


@pytest.mark.parametrize("kind", LAYERS)
def test_the_penalty_is_that_of_the_rows_of_the_batch_and_reaches_only_them(kind):
    layer = LAYERS[kind](PENALTY)
    called(layer, training=False)
    assert not layer.losses
    with tf.GradientTape() as tape:
        called(layer, training=True)
        loss = tf.add_n(layer.losses)
    rows = rows_read(kind)
    np.testing.assert_allclose(loss, rows * D * (0.25 * 0.5 + 0.5 * 0.25), rtol=1e-6)
    tables = [v for v in layer.trainable_variables if len(v.shape) == 2]
    gradients = tape.gradient(loss, tables)
    assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
    dense = [np.asarray(tf.cast(tf.convert_to_tensor(g), tf.float32)) for g in gradients]
    assert sum((d != 0).sum() for d in dense) == rows * D
    assert all(set(np.unique(d)) <= {0, 0.75} for d in dense)  # l1 + 2 * l2 * w


def test_a_training_with_a_regularizer_is_that_of_the_dense_penalty_of_these_rows():
    inputs = tf.keras.Input([2], dtype="int64")
    outputs = LAYERS["sparse_linear"](tf.keras.regularizers.L2(0.5))(inputs)
    model = tf.keras.Model(inputs, outputs)
    model.compile(optimizers.SGD(0.1), "mse")
    model.fit(IDS, np.ones([2, D]), batch_size=2, epochs=1, verbose=0)  # every output is 1
    kernel = np.asarray(tf.convert_to_tensor(model.weights[0]))
    expected = np.full([N, D], 0.5, np.float32)
    expected[[1, 4, 7]] -= 0.1 * 2 * 0.5 * 0.5
    np.testing.assert_allclose(kernel, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_regularizers_are_in_the_config(kind):
    layer = LAYERS[kind](PENALTY)
    again = type(layer).from_config(layer.get_config())
    called(again, training=True)
    assert again.losses
    assert again.get_config() == layer.get_config()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda **k: layers.SparseLinear(D, N, **k), "kernel_constraint"),
        (lambda **k: layers.DynamicSparseLinear(D, N, **k), "kernel_constraint"),
        (lambda **k: layers.FieldEmbedding(N, D, **k), "embeddings_constraint"),
    ],
)
def test_a_constraint_of_a_table_is_refused(make, name):
    make(**{name: None})
    with pytest.raises(ValueError, match=f"{name} must be None.*every row"):
        make(**{name: "non_neg"})


def test_the_bias_has_a_regularizer_and_a_constraint():
    layer = layers.SparseLinear(
        D, N, bias_initializer="ones", bias_regularizer="l2", bias_constraint="non_neg"
    )
    called(layer)
    np.testing.assert_allclose(tf.add_n(layer.losses), 0.01 * D, rtol=1e-6)
    optimizers.SGD(1.0).apply_gradients([(2 * tf.ones([D]), layer.bias)])
    np.testing.assert_array_equal(tf.convert_to_tensor(layer.bias), 0)


def test_a_table_in_a_file_has_no_regularizer(tmp_path):
    storage = layers.Tiered(str(tmp_path), 8)
    layer = layers.SparseLinear(D, N, storage=storage, kernel_regularizer="l2")
    with pytest.raises(ValueError, match="regularizer of the table"):
        called(layer, training=True)
