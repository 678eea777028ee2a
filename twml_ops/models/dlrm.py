"""The deep learning recommendation model (DLRM) on fields.

numbers ── dense net ── vector ──┬──────────────────┬─ dense net ──(+)─ sigmoid
fields ──┬─ vectors ─────────────┴─ dot products ───┘               │
         └─ linear ─────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import DotInteraction
from twml_ops.models._fields import Fields, concatenated, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._options import HashedNetOptions, shares

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(HashedNetOptions, stddev=0.1)
def dlrm(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    bottom: Sequence[int] = (64,),
    hidden: Sequence[int] = (64, 32),
    **options: Unpack[HashedNetOptions],
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
        bottom: widths of the dense layers on the numbers, before one of width `units`.
        hidden: widths of the dense layers.
        **options: see `HashedNetOptions`.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has fewer than two fields.
    """
    fields = Fields(schema, dataset, options)
    units = options["units"]
    vectors = fields.dropped(fields.vectors())
    if fields.numbers is None:
        joined = [DotInteraction(name="products")(vectors)]
    else:
        x = dense_net(fields.numbers, [*bottom, units], 0.0, name="bottom")
        field = tf.keras.layers.Reshape((1, units), name="bottom_field")(x)
        vectors = tf.keras.layers.Concatenate(axis=1, name="vectors")([field, vectors])
        joined = [x, DotInteraction(name="products")(vectors)]
    deep = concatenated(joined, "top_input")
    top = fields.logits(dense_net(deep, hidden, options["dropout"]))
    return fields.model("dlrm", [*fields.linear(), top])
