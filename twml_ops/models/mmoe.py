"""The multi-gate mixture of experts (MMoE).

fields ── vectors ──┬─ experts ──┬─ mixture of gate 1 ── dense net ── logit of label 1
                    └─ gates ────┴─ mixture of gate 2 ── dense net ── logit of label 2
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, concatenated, dense_net
from twml_ops.models._layouts import takes


@takes("fields")
def mmoe(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 8,
    field_units: Sequence[str] | None = None,
    experts: int = 4,
    expert_units: int = 64,
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
    """Builds a multi-gate mixture of experts.

    `experts` dense layers on the vectors of all fields and the ranks of the numbers are mixed for
    each label by the weights of a gate, a softmax layer of the same input. Each label has dense
    layers and a logit of its own on its mixture, plus that of `logistic`. See Ma et al., "Modeling
    Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD 2018.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        units: width D of the vectors.
        field_units: widths of single fields, such as city:4,device:2, or auto: the fourth root of
            the number of rows of a field, at most `units`. The vectors of each field are then
            multiplied by a matrix of the field.
        experts: number of experts.
        expert_units: width of an expert.
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
    x = fields.deep_input(vectors, embedding_dropout)
    each = [dense_net(x, [expert_units], dropout, name=f"expert_{i}") for i in range(experts)]
    stacked = tf.keras.layers.Reshape((experts, expert_units), name="experts")(
        concatenated(each, "expert_outputs")
    )
    mixed = []
    for i in range(len(fields.labels)):
        gate = tf.keras.layers.Dense(experts, activation="softmax", name=f"gate_{i}")(x)
        mixed.append(tf.keras.layers.Dot(axes=(1, 1), name=f"mixture_{i}")([gate, stacked]))
    return fields.model(
        "mmoe", [*fields.linear(l2=linear_l2), fields.towers(mixed, towers, dropout)]
    )
