"""The model and the data of the tests of parameter servers."""

import numpy as np
import tensorflow as tf

from twml_ops import layers

ROWS, BATCH, ENTRIES = 300, 16, 6


def builder(norm=False):
    tf.keras.utils.set_random_seed(3)
    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    batch = layers.MaxNorm(ROWS)(inputs) if norm else inputs
    hidden = layers.SparseLinear(8, ROWS, activation="relu", name="table")(batch)
    hidden = tf.keras.layers.Dense(6, activation="relu")(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


def whole_batches(part=0, parts=1):
    """Returns eight batches, or of each only part `part` of `parts`."""
    rng = np.random.default_rng(0)
    result = []
    for _ in range(8):
        ids = rng.integers(0, ROWS, [BATCH, ENTRIES])
        values = rng.normal(size=[BATCH, ENTRIES]).astype("f")
        labels = (ids.min(axis=1, keepdims=True) < 40).astype("f")
        rows = slice(part * BATCH // parts, (part + 1) * BATCH // parts)
        x = tuple(tf.RaggedTensor.from_tensor(t[rows]) for t in (ids, values))
        result.append((x, labels[rows]))
    return result


def batches(context):
    return whole_batches(context.input_pipeline_id, context.num_input_pipelines)


def same(want, got, tolerance=0.0):
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
