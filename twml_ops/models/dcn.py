"""The Deep & Cross Network, version 2 (DCN-v2), on the id spaces of `sparse_mlp`.

id spaces ── sparse linear each ── concatenated: x0 ──┬─ cross ─ cross ─┬─ logit ─┐
                                                      └─ dense net ─────┘        (+)─ sigmoid
id spaces ── sparse linear, 1 unit ───────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import Cross
from twml_ops.models._id_spaces import (
    dense_net,
    id_spaces,
    linear_parts,
    wide_and_deep,
)
from twml_ops.models._labels import base_logits


def dcn(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 32,
    num_crosses: int = 2,
    rank: int | None = None,
    hidden: Sequence[int] = (32,),
    dropout: float = 0.5,
    num_bins: int = 20,
    discretize: bool = True,
    categorical_bits: int = 18,
    stddev: float = 0.02,
) -> tf.keras.Model:
    """Builds a Deep & Cross Network in its parallel form.

    Each id space (buckets, normalized numbers, hashed categories, raw sparse ids) has a
    `SparseLinear` with `units` outputs. Their concatenation x0 is the input of `num_crosses` layers
    x ← x0 ⊙ (W x + b) + x and, in parallel, of a dense net. The logit is linear in both outputs,
    plus a wide part: one weight for each id. See Wang et al., "DCN V2: Improved Deep & Cross
    Network and Practical Lessons for Web-scale Learning to Rank Systems", WWW 2021.

    Args:
        schema: the features.
        dataset: batches of (features, labels) or (features, labels, sample weights) on which the
            discretizer is adapted, usually the training data.
        units: number of outputs of the first layer for each id space.
        num_crosses: number of `Cross` layers; the result is a polynomial of degree
            `num_crosses` + 1.
        rank: rank of their matrices W; None: full rank.
        hidden: widths of the dense layers.
        dropout: share of the outputs of the first layer and of the dense layers that is dropped in
            training.
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
    parts = linear_parts(spaces, units, "deep", stddev)
    x0 = parts[0] if len(parts) == 1 else tf.keras.layers.Concatenate(name="x0")(parts)
    x0 = tf.keras.layers.Dropout(dropout)(x0)
    crossed = x0
    for _ in range(num_crosses):
        crossed = Cross(rank)(x0, crossed)
    deep = tf.keras.layers.Activation("relu", name="first")(x0)
    deep = dense_net(deep, hidden, dropout)
    both = tf.keras.layers.Concatenate(name="crossed_and_deep")([crossed, deep])
    return wide_and_deep(
        "dcn", inputs, spaces, both, base_logits(dataset, schema.labels), schema.labels
    )
