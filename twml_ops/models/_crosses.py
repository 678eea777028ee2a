"""Chooses the crosses of the categorical fields of a data set whose statistics `dcn` has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops import layers
from twml_ops.data import Schema
from twml_ops.layers._row_sample import RowSample
from twml_ops.models._labels import columns_of

Array = npt.NDArray[Any]

ROW_KEYS = "row_keys"
_SEPARATOR = "*"
_MAX_EXAMPLES = 1 << 17
_MAX_CROSSES = 24


def choose_crosses(
    schema: Schema, dataset: tf.data.Dataset, validation: tf.data.Dataset
) -> list[str]:
    """Chooses crosses on one part of the data, and keeps them if they gain on another one.

    A sample of at most 2^17 rows of each part is used; see `layers.choose_crosses`.

    Args:
        schema: the features and labels.
        dataset: batches in the layout "keyed_fields", which are read once.
        validation: other examples, which are in no statistic.

    Returns:
        At most 24 crosses as `dcn` takes them: the names of their fields with `*` between them.
        With several labels, the crosses that were chosen for each.
    """
    parts = []
    for batches in (dataset, validation):
        sample = CrossExamples(schema)
        for features, labels, *weights in batches:
            sample.update(features, *columns_of(labels, weights, schema.labels))
        parts.append(sample)
    return cross_names(parts[0].crosses(parts[1]), schema)


class CrossExamples:
    """A sample of the rows of a data set, of which crosses are chosen.

    Args:
        schema: the features and labels.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._sample = RowSample(_MAX_EXAMPLES)

    def update(self, features: Mapping[str, Any], labels: Array, weights: Array) -> None:
        """Adds a batch.

        Args:
            features: in the layout "keyed_fields".
            labels: float64 [B, L].
            weights: float64 [B].
        """
        ids, keys = features["categorical"].numpy(), features[ROW_KEYS].numpy()
        numbers = np.zeros((len(ids), 0), np.float32)
        if self._schema.continuous:
            present = features["continuous_present"].numpy()
            numbers = np.where(present, features["continuous"].numpy(), np.float32(np.nan))
        self._sample.update(keys, ids, labels, weights, numbers)

    def all_rows(self) -> tuple[Array, ...] | None:
        """Row keys, ids, labels and weights; None if the sample does not have all rows."""
        return self._sample.rows()[:4] if self._sample.is_complete else None

    def crosses(self, validation: CrossExamples | None = None) -> list[tuple[int, ...]]:
        """Chooses crosses for each label, without repetitions.

        Args:
            validation: examples that are held out; None: a fifth of these.
        """
        rows, held_out = self._sample.rows(), None
        if validation is not None:
            others = validation._sample.rows()
            if not rows or not others:
                return []
            held_out = np.arange(len(rows[0]) + len(others[0])) >= len(rows[0])
            rows = tuple(np.concatenate(pair) for pair in zip(rows, others, strict=True))
        if not rows:
            return []
        keys, ids, labels, weights, numbers = rows
        found: dict[tuple[int, ...], None] = {}
        for label in labels.T:
            found |= dict.fromkeys(
                layers.choose_crosses(
                    ids,
                    keys,
                    label,
                    weights,
                    numbers=numbers,
                    held_out=held_out,
                    max_crosses=_MAX_CROSSES,
                    num_examples=max(self._sample.num_seen, len(keys)),
                )
            )
        return list(found)[:_MAX_CROSSES]


def cross_names(crosses: Sequence[Sequence[int]], schema: Schema) -> list[str]:
    """Crosses of positions of fields as `dcn` takes them."""
    return [_SEPARATOR.join(schema.fields[f] for f in cross) for cross in crosses]


def cross_positions(crosses: Sequence[str], schema: Schema) -> list[tuple[int, ...]]:
    """Crosses that `dcn` takes as positions of fields.

    Raises:
        ValueError: a name is none of a categorical field, or a cross has fewer than two fields.
    """
    found = []
    for cross in crosses:
        names = cross.split(_SEPARATOR)
        unknown = [name for name in names if name not in schema.fields]
        if unknown or len(set(names)) != len(names) or len(names) < 2:
            raise ValueError(
                f"crosses must be two or more different categorical features with "
                f"{_SEPARATOR!r} between them, got {cross!r}; the features are "
                f"{', '.join(schema.fields)}"
            )
        found.append(tuple(schema.fields.index(name) for name in names))
    return found
