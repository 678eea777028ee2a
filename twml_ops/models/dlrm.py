"""The deep learning recommendation model (DLRM) on fields.

numbers ── dense net ── vector ──┬──────────────────┬─ dense net ──(+)─ sigmoid
fields ──┬─ vectors ─────────────┴─ dot products ───┘               │
         └─ linear ─────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import DotInteraction
from twml_ops.models._fields import Fields, concatenated, dense_net
from twml_ops.models._layouts import takes


@takes("fields")
def dlrm(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 8,
    field_units: Sequence[str] | None = None,
    bottom: Sequence[int] = (64,),
    hidden: Sequence[int] = (64, 32),
    dropout: float = 0.2,
    embedding_dropout: float = 0.2,
    l2: float = 0.1,
    linear_l2: float = 0.01,
    num_bins: int = 20,
    min_count: int = 2,
    max_rows: int = 1 << 18,
    stddev: float = 0.1,
    learned_hash: str | None = None,
) -> tf.keras.Model:
    """Builds a DLRM.

    A dense net makes a vector of the ranks of the numbers. Dense layers on this vector and on the
    dot products of all pairs of it and the vectors of the fields give the logit. See Naumov et al.,
    "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
    2019. Unlike there, continuous fields have a vector for each bucket, too, and the logit of
    `logistic` is added.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        units: width D of the vectors.
        field_units: widths of single fields, such as city:4,device:2, or auto: the fourth root of
            the number of rows of a field, at most `units`. The vectors of each field are then
            multiplied by a matrix of the field.
        bottom: widths of the dense layers on the numbers, before one of width `units`.
        hidden: widths of the dense layers.
        dropout: share of the outputs of the dense layers that is dropped in training.
        embedding_dropout: share of the components of the vectors that is dropped in training.
        l2: strength of the L2 regularization of the vectors that a batch looks up.
        linear_l2: the same for the weights of the linear part.
        num_bins: largest number of buckets of a continuous field.
        min_count: smallest number of occurrences of a category with a row of its own; all rarer
            categories of a field share one.
        max_rows: largest number of rows of a field, for its most frequent categories.
        stddev: standard deviation of the initial vectors.
        learned_hash: file that `twml-ops learn-hash` wrote for the features, which gives rows to
            the categories instead of `min_count` and `max_rows`; None: these do.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has fewer than two fields.
    """
    fields = Fields(
        schema,
        dataset,
        num_bins=num_bins,
        min_count=min_count,
        max_rows=max_rows,
        learned_hash=learned_hash,
    )
    vectors = fields.vectors(units, stddev=stddev, l2=l2, field_units=field_units)
    vectors = tf.keras.layers.Dropout(embedding_dropout, name="embedding_dropout")(vectors)
    if fields.numbers is None:
        joined = [DotInteraction(name="products")(vectors)]
    else:
        x = dense_net(fields.numbers, [*bottom, units], 0.0, name="bottom")
        field = tf.keras.layers.Reshape((1, units), name="bottom_field")(x)
        vectors = tf.keras.layers.Concatenate(axis=1, name="vectors")([field, vectors])
        joined = [x, DotInteraction(name="products")(vectors)]
    deep = concatenated(joined, "top_input")
    top = fields.logits(dense_net(deep, hidden, dropout))
    return fields.model("dlrm", [*fields.linear(l2=linear_l2), top])
