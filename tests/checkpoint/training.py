"""A small model with every kind of state, and batches for it."""

import itertools

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
    tf.keras.utils.set_random_seed(1)
    _keras.keep_random_state_in_variables()
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


def make_small_model(optimizer=None, storage=None, **compile_options):
    """A compiled model that is traced in a short time, with a table, dropout and a metric."""
    tf.keras.utils.set_random_seed(1)
    _keras.keep_random_state_in_variables()
    ids, values = tf.keras.Input([FIELDS], dtype="int64"), tf.keras.Input([FIELDS])
    linear = layers.SparseLinear(4, N, storage=storage)
    x = tf.keras.layers.Dropout(0.5)(linear((ids, values)))
    model = tf.keras.Model([ids, values], tf.keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer or optimizers.Adagrad(0.1), "mse", metrics=["mae"], **compile_options)
    return model


def bits(model):
    """Every variable of the training of a model, by name."""
    return {v.name: np.array(v.view()).tobytes() for v in variables_of(model)}


def epoch(number, count, seed=7):
    """The batches of an epoch, the last of them short, in an order of its own."""
    found = list(batches(count))
    (ids, values), label = found[0]
    found[0] = (ids[:9], values[:9]), label[:9]
    order = np.random.default_rng([seed, number]).permutation(count - 1) + 1
    return [found[i] for i in [*order, 0]]


def dataset(position, repeat, count):
    """Batches from a position on, as `Source.dataset` makes them; counts what it has made."""
    passes = itertools.count()

    def generate():
        for n in itertools.count() if repeat else [next(passes)]:
            first = position.examples // BATCH if n == 0 else 0
            yield from epoch(position.epoch + n, count)[first:]

    signature = (
        (tf.TensorSpec([None, FIELDS], tf.int64), tf.TensorSpec([None, FIELDS])),
        tf.TensorSpec([None, 1]),
    )
    made = tf.data.Dataset.from_generator(generate, output_signature=signature)
    if repeat:
        return made.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    if not position.examples:
        made = made.apply(tf.data.experimental.assert_cardinality(count))
    return made.prefetch(2)
