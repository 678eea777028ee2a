"""A dense net that several labels share.

fields ── vectors ── dense net ──┬─ dense net ── logit of label 1
                                 └─ dense net ── logit of label 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields, dense_net
from twml_ops.models._layouts import takes
from twml_ops.models._options import NetOptions, shares

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(NetOptions)
def shared_bottom(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    hidden: Sequence[int] = (64, 32),
    towers: Sequence[int] = (32,),
    **options: Unpack[NetOptions],
) -> tf.keras.Model:
    """Builds a dense net with a tower for each label.

    Dense layers on the vectors of all fields and the ranks of the numbers are shared by the labels.
    Each label has dense layers and a logit of its own, plus that of `logistic`. See Caruana,
    "Multitask Learning", Machine Learning 28, 1997.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        hidden: widths of the dense layers.
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
    shared = dense_net(fields.deep_input(vectors), hidden, options["dropout"])
    own = fields.towers([shared] * len(fields.labels), towers, options["dropout"])
    return fields.model("shared_bottom", [*fields.linear(), own])
