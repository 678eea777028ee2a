"""Norms of the weights that the entries of a feature read."""

import math

import numpy as np
import pytest
import tensorflow as tf

from twml_ops.analysis.feature_groups import feature_groups
from twml_ops.analysis.weight_norms import weight_norms
from twml_ops.data import Schema
from twml_ops.layers import MaxNorm, SparseLinear

SCHEMA = Schema(("x", "y", "z"), (), 0, "label")
FEATURES = {
    "continuous_ids": tf.ragged.constant([[0, 1], [], [0]], tf.int64, ragged_rank=1),
    "continuous_values": tf.ragged.constant([[0.5, 2.0], [], [-1.0]], ragged_rank=1),
}


def model(*layers):
    inputs = {
        "continuous_ids": tf.keras.Input([None], dtype="int64", ragged=True, name="continuous_ids"),
        "continuous_values": tf.keras.Input([None], ragged=True, name="continuous_values"),
    }
    batch = MaxNorm(3)([inputs["continuous_ids"], inputs["continuous_values"]])
    outputs = [layer(batch) for layer in layers]
    total = tf.keras.layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(total))


@pytest.mark.parametrize(
    "partitions", [{}, {"num_partitions": 2}, {"num_partitions": 2, "partition_axis": "column"}]
)
def test_norms_are_those_of_the_rows_that_are_read(partitions):
    first, second = SparseLinear(4, 3, **partitions), SparseLinear(1, 3, activation="relu")
    m = model(first, second)
    norms = weight_norms(m, FEATURES, feature_groups(FEATURES, SCHEMA))
    whole = np.zeros((3, 4))
    for p, kernel in enumerate(first.kernels):
        count = first.num_partitions
        if first.partition_axis == "row":
            whole[p::count] = kernel.numpy()
        else:
            whole[:, p * 4 // count : (p + 1) * 4 // count] = kernel.numpy()
    for i, name in enumerate(["x", "y"]):
        want = math.sqrt((whole[i] ** 2).sum() + second.kernel.numpy()[i, 0] ** 2)
        assert norms[name] == pytest.approx(want, rel=1e-5)
    assert math.isnan(norms["z"])


def test_tables_that_are_not_trained_do_not_count():
    learned = SparseLinear(4, 3)
    multi_hot = SparseLinear(3, 3, kernel_initializer="identity", trainable=False)
    norms = weight_norms(model(learned, multi_hot), FEATURES, feature_groups(FEATURES, SCHEMA))
    want = np.linalg.norm(learned.kernel.numpy(), axis=1)
    assert [norms["x"], norms["y"]] == pytest.approx(want[:2].tolist(), rel=1e-5)


def test_a_model_without_sparse_layers_has_none():
    inputs = tf.keras.Input([2])
    dense = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
    norms = weight_norms(dense, FEATURES, feature_groups(FEATURES, SCHEMA))
    assert set(norms) == {"x", "y", "z"}
    assert all(math.isnan(v) for v in norms.values())
