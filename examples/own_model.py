"""A model that is not in the package, for `twml-ops train`.

twml-ops info examples/own_model.py:build
twml-ops train --data flights --model examples/own_model.py:build --set units=16 --out out/own
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops import layers, models
from twml_ops.data import Schema


def build(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 8,
    hidden: Sequence[int] = (16,),
    categorical_bits: int = 16,
) -> tf.keras.Model:
    """A sparse-linear layer on the hashed categories and a small dense net.

    Args:
        schema: the features.
        dataset: batches of (features, labels), for layers that need `adapt`; not used here.
        units: number of outputs of the sparse-linear layer.
        hidden: widths of the dense layers.
        categorical_bits: categories are hashed into 2^categorical_bits ids.

    Returns:
        An uncompiled model: dictionary of features → probabilities [B, 1].
    """
    del dataset
    if not schema.categorical:
        raise ValueError("this model needs categorical features, the schema has none")
    ids = tf.keras.Input([None], ragged=True, dtype="int64", name="categorical_ids")
    hashed = models.HashedIds(categorical_bits)
    x = layers.SparseLinear(units, hashed.output_dim, activation="relu")(hashed(ids))
    for width in hidden:
        x = tf.keras.layers.Dense(width, activation="relu")(x)
    probability = tf.keras.layers.Dense(1, activation="sigmoid", name="probability")(x)
    return tf.keras.Model({"categorical_ids": ids}, probability, name="own_model")
