"""The factorization machine on fields.

fields ──┬─ linear ───────────────────────────(+)─ sigmoid
         └─ vectors ── products of all pairs ──┘
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields
from twml_ops.models._layouts import takes


@takes("fields")
def fm(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 8,
    field_units: Sequence[str] | None = None,
    l2: float = 0.1,
    linear_l2: float = 0.01,
    num_bins: int = 20,
    min_count: int = 2,
    max_rows: int = 1 << 18,
    stddev: float = 0.01,
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
        units: width D of the vectors.
        field_units: widths of single fields, such as city:4,device:2, or auto: the fourth root of
            the number of rows of a field, at most `units`. The vectors of each field are then
            multiplied by a matrix of the field.
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
        ValueError: the schema has fewer than two fields.
    """
    fields = Fields(schema, dataset, num_bins=num_bins, min_count=min_count, max_rows=max_rows)
    vectors = fields.vectors(units, stddev=stddev, l2=l2, field_units=field_units)
    return fields.model("fm", [*fields.linear(l2=linear_l2), fields.pairs(vectors)])
