"""The reference ranking model: one very wide sparse-linear layer, then a small dense net.

continuous ──┬─ buckets ──────┐
             └─ max norm ─────┤
categorical ─── hash ─────────┼─ sparse linear ─ relu ─ dense net ─┐
sparse ──────── max norm ─────┤                                   (+)─ sigmoid
                              └─ sparse linear, 1 unit ────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._spaces import base_logit, dense_net, linear, spaces_of, wide_and_deep


def sparse_mlp(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 32,
    hidden: Sequence[int] = (32,),
    dropout: float = 0.5,
    num_bins: int = 20,
    discretize: bool = True,
    categorical_bits: int = 18,
    stddev: float = 0.02,
) -> tf.keras.Model:
    """Builds the model, wide and deep (Cheng et al., 2016), for the features of `schema`.

    Every id space (buckets, normalized numbers, hashed categories, raw sparse ids) has its own
    `SparseLinear`; their sum is the one big layer on the concatenation of the spaces.

    Args:
        schema: says which groups of features there are.
        dataset: batches of (features, labels) to adapt the discretizer on: the training data.
        units: width of the first layer.
        hidden: widths of the dense layers that follow.
        dropout: share of the outputs of these layers that are dropped in training.
        num_bins: buckets per continuous feature.
        discretize: whether continuous features go in as buckets too, beside their numbers.
        categorical_bits: categories are hashed into 2^categorical_bits ids.
        stddev: of the initial rows of the first layer.

    Returns:
        An uncompiled model: dict of ragged features, named as in `Source.dataset` → [B, 1].

    Raises:
        ValueError: the schema has no features.
    """
    inputs, spaces = spaces_of(
        schema,
        dataset,
        num_bins=num_bins,
        discretize=discretize,
        categorical_bits=categorical_bits,
    )
    deep = tf.keras.layers.Activation("relu", name="first")(linear(spaces, units, "deep", stddev))
    deep = tf.keras.layers.Dropout(dropout)(deep)
    deep = dense_net(deep, hidden, dropout)
    return wide_and_deep("sparse_mlp", inputs, spaces, deep, base_logit(dataset))
