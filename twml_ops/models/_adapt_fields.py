"""Adapts the first layers of a model on fields to the data, in one pass over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.data.layouts import bag_name
from twml_ops.layers import CategoryRows, FieldQuantiles
from twml_ops.models._labels import smoothed_logits


def adapt_fields(
    schema: Schema,
    dataset: tf.data.Dataset,
    quantiles: FieldQuantiles | None,
    categories: CategoryRows | None,
) -> list[float]:
    """Reads a data set once, and adapts layers to it.

    Args:
        schema: the features and labels.
        dataset: batches of (features, labels) or (features, labels, sample weights) in the layout
            "fields".
        quantiles: layer of the continuous fields; None: there are none.
        categories: layer of the categorical fields, then the bags; None: there are none.

    Returns:
        The logit of the share of positives of each label.
    """
    sketch = None if quantiles is None else quantiles.new_sketch()
    counts = None if categories is None else categories.new_counts()
    positives, examples = np.zeros(len(schema.labels)), 0.0
    for features, labels, *weights in dataset:
        if sketch is not None:
            present = features["continuous_present"].numpy()
            sketch.update(np.nonzero(present)[1], features["continuous"].numpy()[present])
        if counts is not None:
            for field, ids in enumerate(_ids_by_field(schema, features)):
                counts.update(field, ids)
        by_label = [labels[n] for n in schema.labels] if isinstance(labels, dict) else [labels]
        y = np.stack([c.numpy().reshape(-1) for c in by_label], axis=1).astype(np.float64)
        w = weights[0].numpy().astype(np.float64).reshape(-1) if weights else np.ones(len(y))
        positives += w @ y
        examples += float(w.sum())
    if quantiles is not None and sketch is not None:
        quantiles.adapt_from_sketch(sketch)
    if categories is not None and counts is not None:
        categories.adapt_from_counts(counts)
    return smoothed_logits(positives.tolist(), examples)


def _ids_by_field(schema: Schema, features: Mapping[str, Any]) -> Iterator[Any]:
    """The ids of each categorical field, then of each bag, of a batch."""
    if schema.fields:
        yield from features["categorical"].numpy().T
    for name in schema.bags:
        yield features[f"{bag_name(name)}_ids"].flat_values.numpy()
