"""The multi-gate mixture of experts (MMoE).

fields ── vectors ──┬─ experts ──┬─ mixture of gate 1 ── dense net ── logit of label 1
                    └─ gates ────┴─ mixture of gate 2 ── dense net ── logit of label 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, concatenated, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._options import NetOptions, shares

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(NetOptions)
def mmoe(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    experts: int = 4,
    expert_units: int = 64,
    towers: Sequence[int] = (32,),
    **options: Unpack[NetOptions],
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
        experts: number of experts.
        expert_units: width of an expert.
        towers: widths of the dense layers of each label.
        **options: see `NetOptions`.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has no features.
    """
    fields = Fields(schema, dataset, options)
    vectors = fields.vectors()
    x = fields.deep_input(vectors)
    each = [
        dense_net(x, [expert_units], options["dropout"], name=f"expert_{i}") for i in range(experts)
    ]
    stacked = tf.keras.layers.Reshape((experts, expert_units), name="experts")(
        concatenated(each, "expert_outputs")
    )
    mixed = []
    for i in range(len(fields.labels)):
        gate = tf.keras.layers.Dense(experts, activation="softmax", name=f"gate_{i}")(x)
        mixed.append(tf.keras.layers.Dot(axes=(1, 1), name=f"mixture_{i}")([gate, stacked]))
    return fields.model(
        "mmoe", [*fields.linear(), fields.towers(mixed, towers, options["dropout"])]
    )
