"""What a data set looks like, feature by feature, from one pass and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twml_ops._core import QuantileSketch
from twml_ops.analysis.category_columns import Known, columns_of
from twml_ops.data import Schema
from twml_ops.data.block import Block

Array = npt.NDArray[Any]
EPSILON = 1e-3
MAX_CATEGORIES = 1 << 22
OPEN = -1


class Histogram(NamedTuple):
    """How often a feature was in each of some bins; the last counts the examples without it.

    Attributes:
        names: of the bins.
        counts: [bins].
    """

    names: list[str]
    counts: Array


class Profile:
    """Counts of the features of a data set.

    Continuous features and the sparse ids asked for are kept in quantile sketches, categories are
    counted one by one; of more than MAX_CATEGORIES the rarer half is pooled per column.

    Args:
        schema: the features.
        sparse_ids: the raw ids to look at.

    Attributes:
        examples: how many there were.
    """

    def __init__(self, schema: Schema, sparse_ids: Iterable[int] = ()) -> None:
        self.examples = 0
        self._schema = schema
        self._sparse_ids = np.array(sorted(sparse_ids), np.int64)
        self._sketches = {g: QuantileSketch(EPSILON) for g in ("continuous", "sparse")}
        none = np.zeros(0, np.int64)
        self._categories = _Categories(none, none, none)
        self._pooled = np.zeros(len(schema.categorical) + 1, np.int64)  # the last: column open

    def add(self, block: Block) -> None:
        """Takes in examples."""
        self.examples += len(block)
        for group, rows in block.groups.items():
            if group == "categorical":
                self._count(rows.row_splits, rows.ids)
                continue
            ids, values = rows.ids, rows.values
            assert values is not None
            if group == "sparse":
                wanted = np.isin(ids, self._sparse_ids)
                ids, values = ids[wanted], values[wanted]
            self._sketches[group].update(ids, values)

    def _count(self, row_splits: Array, ids: Array) -> None:
        column = columns_of(row_splits, ids, len(self._schema.categorical))
        unique, first, counts = np.unique(ids, return_index=True, return_counts=True)
        seen = _Categories(unique, counts, column[first])
        self._categories = _merged(self._categories, seen)
        if len(self._categories.ids) > MAX_CATEGORIES:
            kept = np.argsort(-self._categories.counts, kind="stable")[: MAX_CATEGORIES // 2]
            rare = np.ones(len(self._categories.ids), bool)
            rare[kept] = False
            _, counts, columns = (part[rare] for part in self._categories)
            np.add.at(self._pooled, columns, counts)
            self._categories = _Categories(*(part[~rare] for part in self._categories))

    def present(self, group: str, feature: int) -> int:
        """How many examples have the feature: a position in the schema's group, or a sparse id."""
        if group == "categorical":
            mine = self._categories.columns == feature
            return int(self._categories.counts[mine].sum() + self._pooled[feature])
        return int(self._sketches[group].describe([feature])["weight"][0])

    def undecided(self) -> float:
        """The share of categories whose column could not be told."""
        missed = self._categories.counts[self._categories.columns == OPEN].sum() + self._pooled[-1]
        total = self._categories.counts.sum() + self._pooled.sum()
        return float(missed / total) if total else 0.0

    def known_columns(self) -> Known:
        """The columns of the categories seen, as far as they could be told."""
        told = self._categories.columns != OPEN
        return Known(self._categories.ids[told], self._categories.columns[told])

    def learn_columns(self, other: Profile) -> None:
        """Settles open columns by what another data set shows of the same categories."""
        ours, theirs = self._categories, other._categories
        columns = _merged(ours, theirs._replace(counts=np.zeros_like(theirs.counts))).columns
        merged_ids = np.union1d(ours.ids, theirs.ids)
        mine = columns[np.searchsorted(merged_ids, ours.ids)]
        self._categories = ours._replace(columns=mine)

    def histogram(self, group: str, feature: int, like: Profile, bins: int) -> Histogram:
        """Counts of a feature in bins that another data set (or this one) gives.

        Args:
            group: continuous, categorical or sparse.
            feature: as in `present`.
            like: whose quantiles, or most frequent categories, are the bins.
            bins: at most so many, and one for "missing", and for categories one for all others.
        """
        if group == "categorical":
            names, counts = self._by_category(feature, like, bins)
        else:
            names, counts = self._by_value(group, feature, like, bins)
        return Histogram([*names, "missing"], np.append(counts, self.examples - counts.sum()))

    def _by_value(self, group: str, feature: int, like: Profile, bins: int) -> tuple[Any, Array]:
        edges, _ = like._sketches[group].boundaries([feature], [bins])
        ids = np.full(len(edges), feature)
        ranks = self._sketches[group].ranks(ids, edges)
        counts = np.diff(np.concatenate([[0], ranks, [self.present(group, feature)]]))
        texts = [f"{edge:.4g}" for edge in edges]
        names = [f"≤ {text}" for text in texts] + [f"> {texts[-1]}" if texts else "present"]
        return names, counts

    def _by_category(self, column: int, like: Profile, bins: int) -> tuple[Any, Array]:
        theirs = like._categories
        candidates = np.flatnonzero(theirs.columns == column)
        order = np.argsort(-theirs.counts[candidates], kind="stable")[:bins]
        top = theirs.ids[candidates[order]]
        ours = self._categories
        place = np.minimum(np.searchsorted(ours.ids, top), max(len(ours.ids) - 1, 0))
        found = ours.ids[place] == top if len(ours.ids) else np.zeros(len(top), bool)
        counts = np.where(found, ours.counts[place] if len(ours.ids) else 0, 0)
        others = max(self.present("categorical", column) - int(counts.sum()), 0)
        names = [f"#{i}" for i in range(1, len(top) + 1)]
        return [*names, "others"], np.append(counts, others).astype(float)


class _Categories(NamedTuple):
    """Distinct ids, ascending, how often each was seen, and in which column."""

    ids: Array
    counts: Array
    columns: Array


def _merged(a: _Categories, b: _Categories) -> _Categories:
    ids, place = np.unique(np.concatenate([a.ids, b.ids]), return_inverse=True)
    counts, columns = np.zeros(len(ids), np.int64), np.full(len(ids), OPEN)
    np.add.at(counts, place, np.concatenate([a.counts, b.counts]))
    np.maximum.at(columns, place, np.concatenate([a.columns, b.columns]))
    return _Categories(ids, counts, columns)
