"""The factorization machine on fields.

fields ──┬─ linear ───────────────────────────(+)─ sigmoid
         └─ vectors ── products of all pairs ──┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields
from twml_ops.models._layouts import takes
from twml_ops.models._options import VectorOptions, shares

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(VectorOptions)
def fm(
    schema: Schema,
    dataset: tf.data.Dataset,
    **options: Unpack[VectorOptions],
) -> tf.keras.Model:
    """Builds a factorization machine of degree 2.

    The logit is that of `logistic` plus the sum over all pairs of fields of the dot product of
    their vectors. See Rendle, "Factorization Machines", ICDM 2010. With several labels, the
    products of each component are summed over the pairs, and each label has a weight for each
    component.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        **options: see `VectorOptions`.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has fewer than two fields.
    """
    fields = Fields(schema, dataset, options)
    vectors = fields.vectors()
    return fields.model("fm", [*fields.linear(), fields.pairs(vectors)])
