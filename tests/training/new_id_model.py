"""A model whose table gives rows to ids; test_cluster_runner.py trains it."""

import tensorflow as tf

from twml_ops import layers


def build(schema, dataset, *, units: int = 4, capacity: int = 24):
    """Returns a model of the categories alone, more than the table has rows."""
    del schema, dataset
    ids = tf.keras.Input([None], ragged=True, dtype="int64", name="categorical_ids")
    hidden = layers.DynamicSparseLinear(units, capacity, activation="relu", name="ids")(ids)
    probability = tf.keras.layers.Dense(1, activation="sigmoid", name="probability")(hidden)
    return tf.keras.Model({"categorical_ids": ids}, probability)
