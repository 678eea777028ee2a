"""The Deep & Cross Network, version 2, on the id spaces of `sparse_mlp`.

id spaces ── sparse linear each ── concatenated: x0 ──┬─ cross ─ cross ─┬─ logit ─┐
                                                      └─ dense net ─────┘        (+)─ sigmoid
id spaces ── sparse linear, 1 unit ───────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import Cross
from twml_ops.models._spaces import base_logit, dense_net, linear_parts, spaces_of, wide_and_deep


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
    """Builds DCN-v2 (Wang et al. 2021), its parallel form, for the features of `schema`.

    The sums of each id space's rows stand beside each other and are crossed with each other
    explicitly, `num_crosses` times, beside a dense net; a wide part of one unit is added.

    Args:
        schema: says which groups of features there are.
        dataset: batches of (features, labels) to adapt the discretizer on: the training data.
        units: width of what each id space contributes.
        num_crosses: `Cross` layers: polynomials of degree num_crosses + 1.
        rank: of their matrices; None: full.
        hidden: widths of the dense layers.
        dropout: share of the outputs of the first layer and these layers dropped in training.
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
    parts = linear_parts(spaces, units, "deep", stddev)
    x0 = parts[0] if len(parts) == 1 else tf.keras.layers.Concatenate(name="x0")(parts)
    x0 = tf.keras.layers.Dropout(dropout)(x0)
    crossed = x0
    for _ in range(num_crosses):
        crossed = Cross(rank)(x0, crossed)
    deep = tf.keras.layers.Activation("relu", name="first")(x0)
    deep = dense_net(deep, hidden, dropout)
    both = tf.keras.layers.Concatenate(name="crossed_and_deep")([crossed, deep])
    return wide_and_deep("dcn", inputs, spaces, both, base_logit(dataset))
