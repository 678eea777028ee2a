"""A dense net that several labels share.

fields ── vectors ── dense net ──┬─ dense net ── logit of label 1
                                 └─ dense net ── logit of label 2
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, dense_net
from twml_ops.models._layouts import takes


@takes("fields")
def shared_bottom(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 8,
    field_units: Sequence[str] | None = None,
    hidden: Sequence[int] = (64, 32),
    towers: Sequence[int] = (32,),
    dropout: float = 0.2,
    embedding_dropout: float = 0.2,
    l2: float = 0.1,
    linear_l2: float = 0.01,
    num_bins: int = 20,
    min_count: int = 2,
    max_rows: int = 1 << 18,
    stddev: float = 0.01,
) -> tf.keras.Model:
    """Builds a dense net with a tower for each label.

    Dense layers on the vectors of all fields and the ranks of the numbers are shared by the labels.
    Each label has dense layers and a logit of its own, plus that of `logistic`. See Caruana,
    "Multitask Learning", Machine Learning 28, 1997.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        units: width D of the vectors.
        field_units: widths of single fields, such as city:4,device:2, or auto: the fourth root of
            the number of rows of a field, at most `units`. The vectors of each field are then
            multiplied by a matrix of the field.
        hidden: widths of the dense layers.
        towers: widths of the dense layers of each label.
        dropout: share of the outputs of the dense layers that is dropped in training.
        embedding_dropout: share of the components of the vectors that is dropped in training.
        l2: strength of the L2 regularization of the vectors that a batch looks up.
        linear_l2: the same for the weights of the linear part.
        num_bins: largest number of buckets of a continuous field.
        min_count: smallest number of occurrences of a category with a row of its own; all rarer
            categories of a field share one.
        max_rows: largest number of rows of a field, for its most frequent categories.
        stddev: standard deviation of the initial vectors.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has no features.
    """
    fields = Fields(schema, dataset, num_bins=num_bins, min_count=min_count, max_rows=max_rows)
    vectors = fields.vectors(units, stddev=stddev, l2=l2, field_units=field_units)
    shared = dense_net(fields.deep_input(vectors, embedding_dropout), hidden, dropout)
    own = fields.towers([shared] * len(fields.labels), towers, dropout)
    return fields.model("shared_bottom", [*fields.linear(l2=linear_l2), own])
