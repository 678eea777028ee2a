"""Finds features that alone predict the label almost perfectly, which is mostly a leak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twml_ops.data.block import Block, Rows
from twml_ops.data.schema import Schema

Array = npt.NDArray[Any]

LEAKAGE_AUC = 0.99
MAX_EXAMPLES = 1 << 16
_MIN_OF_A_CLASS = 20
_FOLDS = 5


def leaking_features(
    blocks: Iterable[Block], schema: Schema, threshold: float = LEAKAGE_AUC
) -> dict[str, float]:
    """The features whose values alone order the examples by their label.

    A number is compared by its own order, in the better of the two directions and with missing
    numbers at the better of the two ends. A category is replaced by the mean label of the examples
    of the other four fifths that have it, so that its own label does not count. Bags and raw sparse
    ids are not examined.

    Args:
        blocks: parsed examples, of which the first 65,536 are examined.
        schema: the features and labels.
        threshold: smallest area under the ROC curve that is returned.

    Returns:
        The area of each such feature, in descending order; with several labels the largest one.
        Labels with fewer than 20 positives or negatives do not count.
    """
    parts: list[Block] = []
    rows = 0
    for block in blocks:
        parts.append(block.slice(0, min(len(block), MAX_EXAMPLES - rows)))
        rows += len(parts[-1])
        if rows >= MAX_EXAMPLES:
            break
    if not parts:
        return {}
    of_labels = np.concatenate([p.labels.reshape(len(p), -1) for p in parts]) > 0.5
    found: dict[str, float] = {}
    for labels in of_labels.T:
        if min(labels.sum(), (~labels).sum()) >= _MIN_OF_A_CLASS:
            for name, area in _areas(parts, schema, labels).items():
                found[name] = max(area, found.get(name, 0.0))
    leaks = sorted(found.items(), key=lambda item: -item[1])
    return {name: area for name, area in leaks if area >= threshold}


def _areas(parts: Sequence[Block], schema: Schema, labels: Array) -> dict[str, float]:
    """The area of each feature for one label, bool [N]."""
    found = {}
    if schema.continuous:
        table = _table(parts, "continuous")
        for name, values in zip(schema.continuous, table.T, strict=True):
            ends = [np.where(np.isnan(values), end, values) for end in (-np.inf, np.inf)]
            areas = [_area(x, labels) for x in ends]
            found[name] = max(*areas, *(1 - area for area in areas))
    if schema.fields:
        table = _table(parts, "categorical")
        fold = np.random.default_rng(0).integers(_FOLDS, size=len(labels))
        for name, ids in zip(schema.fields, table.T, strict=True):
            found[name] = _area(_means_of_others(ids, labels, fold), labels)
    return found


def _table(parts: Sequence[Block], group: str) -> Array:
    groups = [part.groups[group] for part in parts]
    return np.concatenate([g.table for g in groups if not isinstance(g, Rows)])


def _means_of_others(ids: Array, labels: Array, fold: Array) -> Array:
    """The mean label of each row's category in the other folds, with one row of the mean of all."""
    _, codes = np.unique(ids, return_inverse=True)
    cells = codes.reshape(-1) * _FOLDS + fold
    size = (int(codes.max()) + 1) * _FOLDS
    of_fold = [np.bincount(cells, w, size).reshape(-1, _FOLDS) for w in (None, labels)]
    seen, positive = (
        sums.sum(axis=1)[codes.reshape(-1)] - sums.reshape(-1)[cells] for sums in of_fold
    )
    means: Array = (positive + labels.mean()) / (seen + 1)
    return means


def _area(values: Array, labels: Array) -> float:
    """Area under the ROC curve; equal values count half."""
    _, codes = np.unique(values, return_inverse=True)
    negatives = np.bincount(codes.reshape(-1), ~labels)
    positives = np.bincount(codes.reshape(-1), labels)
    below = np.cumsum(negatives) - negatives / 2
    return float(positives @ below / (positives.sum() * negatives.sum()))
