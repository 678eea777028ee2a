"""Logistic regression on fields.

fields ── linear ── sigmoid
"""

from __future__ import annotations

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields
from twml_ops.models._layouts import takes


@takes("fields")
def logistic(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    linear_l2: float = 0.01,
    num_bins: int = 20,
    min_count: int = 2,
    max_rows: int = 1 << 18,
) -> tf.keras.Model:
    """Builds a logistic regression.

    The logit is the sum of one weight for each category and for the bucket of each number, of the
    ranks of the numbers times a weight each, and of a bias. See McMahan et al., "Ad Click
    Prediction: a View from the Trenches", KDD 2013.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        linear_l2: strength of the L2 regularization of the weights that a batch looks up.
        num_bins: largest number of buckets of a continuous field.
        min_count: smallest number of occurrences of a category with a row of its own; all rarer
            categories of a field share one.
        max_rows: largest number of rows of a field, for its most frequent categories.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has no features.
    """
    fields = Fields(schema, dataset, num_bins=num_bins, min_count=min_count, max_rows=max_rows)
    return fields.model("logistic", fields.linear(l2=linear_l2))
