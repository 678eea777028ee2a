"""Logistic regression on fields.

fields ── linear ── sigmoid
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models._fields import Fields
from twml_ops.models._layouts import takes
from twml_ops.models._options import LinearOptions, shares

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes("fields")
@shares(LinearOptions)
def logistic(
    schema: Schema,
    dataset: tf.data.Dataset,
    **options: Unpack[LinearOptions],
) -> tf.keras.Model:
    """Builds a logistic regression.

    The logit is the sum of one weight for each category and for the bucket of each number, of the
    ranks of the numbers times a weight each, and of a bias. See McMahan et al., "Ad Click
    Prediction: a View from the Trenches", KDD 2013.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "fields", usually the training data, from which quantiles,
            frequent categories and the initial bias are computed in one pass.
        **options: see `LinearOptions`.

    Returns:
        An uncompiled model: features in the layout "fields" → probabilities [B, 1]; of several
        labels a dict of them.

    Raises:
        ValueError: the schema has no features.
    """
    fields = Fields(schema, dataset, options)
    return fields.model("logistic", fields.linear())
