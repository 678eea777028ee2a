"""Adapts the first layers of a model on fields to the data, in one pass over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.data.layouts import bag_name
from twml_ops.layers import CategoryRows, FieldLogarithms, FieldQuantiles
from twml_ops.models._field_statistics import FieldStatistics
from twml_ops.models._labels import columns_of, smoothed_logits


class FieldState(NamedTuple):
    """The layers that are adapted to the data.

    Attributes:
        quantiles: the quantiles of the continuous fields; None: there are none.
        logarithms: the logarithms of the continuous fields; None: there are none.
        categories: the categories of the categorical fields, then the bags; None: there are none.
        statistics: the statistics of the categorical fields; None: not used.
    """

    quantiles: FieldQuantiles | None
    logarithms: FieldLogarithms | None
    categories: CategoryRows | None
    statistics: FieldStatistics | None


def adapt_fields(
    schema: Schema, dataset: tf.data.Dataset, state: FieldState
) -> tuple[list[float], int]:
    """Reads a data set once, adapts layers to it, and counts for the statistics.

    Args:
        schema: the features and labels.
        dataset: batches of (features, labels) or (features, labels, sample weights) in the layout
            "fields".
        state: the layers.

    Returns:
        The logit of the share of positives of each label, and the number of examples.

    Raises:
        ValueError: there are statistics, but the features have no `row_keys`.
    """
    sketch = state.quantiles and state.quantiles.new_sketch()
    moments = state.logarithms and state.logarithms.new_moments()
    ids_seen = state.categories and state.categories.new_counts()
    positives, total, examples = np.zeros(len(schema.labels)), 0.0, 0
    for features, labels, *weights in dataset:
        if sketch is not None:
            numbers = features["continuous"].numpy()
            present = features["continuous_present"].numpy()
            sketch.update(np.nonzero(present)[1], numbers[present])
            if moments is not None:
                moments.update(numbers, present)
        if ids_seen is not None:
            for field, ids in enumerate(ids_by_field(schema, features)):
                ids_seen.update(field, ids)
        y, w = columns_of(labels, weights, schema.labels)
        if state.statistics is not None:
            state.statistics.update(features, y, w)
        positives += w @ y
        total += float(w.sum())
        examples += len(w)
    if state.quantiles is not None and sketch is not None:
        state.quantiles.adapt_from_sketch(sketch)
    if state.logarithms is not None and moments is not None:
        state.logarithms.adapt_from_moments(moments)
    if state.categories is not None and ids_seen is not None:
        state.categories.adapt_from_counts(ids_seen)
    return smoothed_logits(positives.tolist(), total), examples


def ids_by_field(schema: Schema, features: Mapping[str, Any]) -> Iterator[Any]:
    """The ids of each categorical field, then of each bag, of a batch."""
    if schema.fields:
        yield from features["categorical"].numpy().T
    for name in schema.bags:
        yield features[f"{bag_name(name)}_ids"].flat_values.numpy()
