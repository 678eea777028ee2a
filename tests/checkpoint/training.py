"""A small model with every kind of state, and batches for it."""

import numpy as np
import tensorflow as tf

from twml_ops import _keras, layers, metrics, optimizers
from twml_ops.checkpoint import variables_of

N, FIELDS, BATCH = 50, 5, 16


def batches(count, seed=3):
    """Batches of features and labels."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ids = rng.integers(0, N, [BATCH, FIELDS])
        values = rng.normal(size=ids.shape).astype(np.float32)
        label = (values.sum(axis=1) + ids[:, 0] / N > 0.5).astype(np.float32)
        yield (tf.constant(ids), tf.constant(values)), tf.constant(label[:, None])


def make_model(optimizer=None, units=4, dropout=0.5, **compile_options):
    """A compiled model with statistics, state of varying size, dropout and an exact metric."""
    if not _keras.KERAS_3:  # the random state of Keras 2 is in variables only then
        tf.keras.backend.experimental.enable_tf_random_generator()
    ids = tf.keras.Input([FIELDS], dtype="int64")
    values = tf.keras.Input([FIELDS])
    normed = layers.MaxNorm(N)((ids, values))
    rows = layers.CategoryRows(FIELDS)
    rows.adapt([next(batches(1))[0][0]])
    x = layers.SparseLinear(units, N, "relu")(normed)
    x = tf.keras.layers.Concatenate()([x, layers.SparseLinear(2, FIELDS * N)(rows(ids))])
    x = tf.keras.layers.Dropout(dropout)(x)
    x = tf.keras.layers.BatchNormalization()(x)
    model = tf.keras.Model([ids, values], tf.keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(
        optimizer or optimizers.LazyAdam(0.01),
        "binary_crossentropy",
        metrics=[tf.keras.metrics.AUC(name="auc"), metrics.ExactROCAUC(name="exact")],
        **compile_options,
    )
    return model


def bits(model):
    """Every variable of the training of a model, by name."""
    return {v.name: np.array(v.view()).tobytes() for v in variables_of(model)}
