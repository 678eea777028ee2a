"""Adapts the first layers of a model on fields to the data, in one pass over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import CategoryCounts, CategoryRows, FieldLogarithms, FieldQuantiles
from twml_ops.layers._recent_results import RecentResults
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


class _Found(NamedTuple):
    """What a pass over the data finds.

    Attributes:
        sketch: of the continuous fields; None without quantiles.
        moments: of the continuous fields; None without logarithms.
        ids: how often each id occurs; None without categories.
        counts: of the statistics, one for each label.
        positives: sum of each label.
        total: sum of the weights.
        examples: their number.
    """

    sketch: Any
    moments: Any
    ids: Any
    counts: list[CategoryCounts]
    positives: list[float]
    total: float
    examples: int


_MOST_BYTES = 1 << 26  # of data whose pass is remembered
_recent: RecentResults[_Found] = RecentResults(1)


def adapt_fields(
    schema: Schema, dataset: tf.data.Dataset, state: FieldState
) -> tuple[list[float], int]:
    """Reads a data set once, adapts layers to it, and counts for the statistics.

    The last pass over small data is remembered, because the second model of a run is adapted to the
    same data as the first one.

    Args:
        schema: the features and labels.
        dataset: batches of (features, labels) or (features, labels, sample weights) in the layout
            "fields".
        state: the layers.

    Returns:
        The logit of the share of positives of each label, and the number of examples.

    Raises:
        ValueError: the batches have another layout, or there are statistics, but the features have
            no `row_keys`.
    """
    _check_layout(schema, dataset)
    batches, first, size = iter(dataset), [], 0
    for batch in batches:
        first.append(batch)
        size += sum(t.dtype.size * int(tf.size(t)) for t in tf.nest.flatten(batch, True))
        if size > _MOST_BYTES:
            break
    asked = _determining(schema, state)
    if size > _MOST_BYTES or asked is None:
        found = _pass(schema, itertools.chain(first, batches), state)
    else:
        arrays = [t.numpy() for batch in first for t in tf.nest.flatten(batch, True)]
        found = _recent.get(arrays, asked, lambda: _pass(schema, first, state))
    if state.statistics is not None:
        state.statistics.use(found.counts)
    if state.quantiles is not None and found.sketch is not None:
        state.quantiles.adapt_from_sketch(found.sketch)
    if state.logarithms is not None and found.moments is not None:
        state.logarithms.adapt_from_moments(found.moments)
    if state.categories is not None and found.ids is not None:
        state.categories.adapt_from_counts(found.ids)
    return smoothed_logits(found.positives, found.total), found.examples


def _check_layout(schema: Schema, dataset: tf.data.Dataset) -> None:
    found = dataset.element_spec[0]
    expected = ["continuous"] * bool(schema.continuous) + ["categorical"] * bool(schema.fields)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ValueError(
            f'dataset must have the layout "fields", with {missing}, got the features '
            f'{sorted(found)}: `@twml_ops.models.takes("fields")` declares it for a function that '
            "builds a model"
        )


def _determining(schema: Schema, state: FieldState) -> Any:
    """What determines, with the data, what a pass finds; None if that must not be remembered."""
    statistics = state.statistics and state.statistics.determining()
    if state.statistics is not None and statistics is None:
        return None
    bins = state.quantiles and state.quantiles.num_bins
    others = state.logarithms is None, state.categories is None
    return schema.labels, schema.fields, schema.bags, bins, others, statistics


def _pass(schema: Schema, dataset: Iterable[Any], state: FieldState) -> _Found:
    """Reads the data once."""
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
    counts = [] if state.statistics is None else state.statistics.counts
    return _Found(sketch, moments, ids_seen, counts, positives.tolist(), total, examples)


def ids_by_field(schema: Schema, features: Mapping[str, Any]) -> Iterator[Any]:
    """The ids of each categorical field, then of each bag, of a batch."""
    if schema.fields:
        yield from features["categorical"].numpy().T
    for name in schema.bags:
        yield features[f"{schema.bag_arrays(name)}_ids"].flat_values.numpy()
