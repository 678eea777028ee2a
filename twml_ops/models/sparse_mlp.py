"""The reference ranking model: a very wide sparse linear layer and a small dense net.

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
from twml_ops.models._id_spaces import dense_net, id_spaces, linear, wide_and_deep
from twml_ops.models._labels import base_logits


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
    """Builds a wide-and-deep model.

    Each id space (buckets, normalized numbers, hashed categories, raw sparse ids) has a
    `SparseLinear` with `units` outputs. Their sum equals one layer on the concatenation of the id
    spaces. A dense net follows; the wide part has one weight for each id. See Cheng et al., "Wide &
    Deep Learning for Recommender Systems", DLRS 2016.

    Args:
        schema: the features.
        dataset: batches of (features, labels) or (features, labels, sample weights) on which the
            discretizer is adapted, usually the training data.
        units: number of outputs of the first layer.
        hidden: widths of the dense layers that follow.
        dropout: share of the outputs of these layers that is dropped in training.
        num_bins: number of buckets of a continuous feature.
        discretize: whether continuous features are inputs as buckets too, beside their values.
        categorical_bits: categories are hashed into 2^categorical_bits ids.
        stddev: standard deviation of the initial rows of the first layer.

    Returns:
        An uncompiled model: dictionary of ragged features, named as in `Source.dataset` →
        probabilities [B, 1]; of several labels a dict of them.

    Raises:
        ValueError: the schema has no features.
    """
    inputs, spaces = id_spaces(
        schema,
        dataset,
        num_bins=num_bins,
        discretize=discretize,
        categorical_bits=categorical_bits,
    )
    deep = tf.keras.layers.Activation("relu", name="first")(linear(spaces, units, "deep", stddev))
    deep = tf.keras.layers.Dropout(dropout)(deep)
    deep = dense_net(deep, hidden, dropout)
    return wide_and_deep(
        "sparse_mlp", inputs, spaces, deep, base_logits(dataset, schema.labels), schema.labels
    )
