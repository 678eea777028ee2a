"""Coverage and histograms of the features of a data set, from one pass and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from twml_ops._core import QuantileSketch
from twml_ops.data import Schema
from twml_ops.data.block import Array, Block, Categories

EPSILON = 1e-3
MAX_CATEGORIES = 1 << 22


class Histogram(NamedTuple):
    """A histogram of a feature over the examples of a data set.

    Attributes:
        names: names of the bins. The last bin, "missing", has the examples without the feature.
        counts: number of examples in each bin, [bins]. Of a bag they are the numbers of its
            categories; the last bin has the examples whose bag is empty.
    """

    names: list[str]
    counts: Array


class Profile:
    """Counts the features of a data set.

    Values of continuous features and of the chosen sparse ids are added to quantile sketches
    (Karnin, Lang and Liberty, "Optimal Quantile Approximation in Streams", FOCS 2016) whose rank
    error is 0.001 of the examples. Categories are counted exactly, until there are more than 4
    million: then only the more frequent half is kept.

    Args:
        schema: the features.
        sparse_ids: the sparse ids to count.

    Attributes:
        examples: number of examples added so far.
    """

    def __init__(self, schema: Schema, sparse_ids: Iterable[int] = ()) -> None:
        self.examples = 0
        self._schema = schema
        self._sparse_ids = np.array(sorted(sparse_ids), np.int64)
        self._sketches = {g: QuantileSketch(EPSILON) for g in ("continuous", "sparse")}
        none = np.zeros(0, np.int64)
        self._categories = _Categories(none, none, none)
        # Of each categorical column: the examples that have it, and its categories.
        self._present = np.zeros(len(schema.categorical), np.int64)
        self._entries = np.zeros(len(schema.categorical), np.int64)

    def add(self, block: Block) -> None:
        """Adds examples.

        Args:
            block: the examples, as `Source.blocks` yields them.
        """
        self.examples += len(block)
        for group, rows in block.groups.items():
            if isinstance(rows, Categories):
                self._count_categories(rows)
                continue
            ids, values = rows.ids, rows.values
            assert values is not None
            if group == "sparse":
                wanted = np.isin(ids, self._sparse_ids)
                ids, values = ids[wanted], values[wanted]
            self._sketches[group].update(ids, values)

    def _count_categories(self, categories: Categories) -> None:
        number = len(self._schema.categorical)
        columns = categories.columns
        self._entries += np.bincount(columns, minlength=number)
        single = [i for i in range(number) if i not in categories.bags]
        self._present[single] += (categories.table >= 0).sum(axis=0)
        for position, bag in categories.bags.items():
            self._present[position] += np.count_nonzero(np.diff(bag.row_splits))
        unique, first, counts = np.unique(categories.ids, return_index=True, return_counts=True)
        seen = _Categories(unique, counts, columns[first])
        self._categories = _merge(self._categories, seen)
        if len(self._categories.ids) > MAX_CATEGORIES:
            self._forget_rare_categories()

    def _forget_rare_categories(self) -> None:
        order = np.argsort(-self._categories.counts, kind="stable")
        kept = np.sort(order[: MAX_CATEGORIES // 2])
        self._categories = _Categories(*(part[kept] for part in self._categories))

    def count(self, group: str, feature: int) -> int:
        """The number of examples that have a feature.

        Args:
            group: "continuous", "categorical" or "sparse".
            feature: position of the feature in its group of the schema, or the sparse id.

        Returns:
            The number of examples.
        """
        if group == "categorical":
            return int(self._present[feature])
        return int(self._sketches[group].describe([feature])["weight"][0])

    def coverage(self, group: str, feature: int) -> float:
        """The share of the examples that have a feature.

        Args:
            group: "continuous", "categorical" or "sparse".
            feature: position of the feature in its group of the schema, or the sparse id.

        Returns:
            A number in [0, 1]; 0 if there are no examples.
        """
        return self.count(group, feature) / max(self.examples, 1)

    def histogram(self, group: str, feature: int, reference: Profile, bins: int) -> Histogram:
        """The histogram of a feature, in the bins of a reference profile.

        Args:
            group: "continuous", "categorical" or "sparse".
            feature: position of the feature in its group of the schema, or the sparse id.
            reference: the profile (another one, or this one) whose quantiles or most frequent
                categories are the bins.
            bins: maximum number of bins. There is one more bin for the examples without the
                feature, and for categories one for all other categories.

        Returns:
            The histogram.
        """
        if group == "categorical":
            names, counts = self._count_by_category(feature, reference, bins)
        else:
            names, counts = self._count_by_value(group, feature, reference, bins)
        missing = self.examples - self.count(group, feature)
        return Histogram([*names, "missing"], np.append(counts, missing))

    def _count_by_value(
        self, group: str, feature: int, reference: Profile, bins: int
    ) -> tuple[list[str], Array]:
        edges, _ = reference._sketches[group].boundaries([feature], [bins])
        ids = np.full(len(edges), feature)
        ranks = self._sketches[group].ranks(ids, edges)
        counts = np.diff(np.concatenate([[0], ranks, [self.count(group, feature)]]))
        texts = [f"{edge:.4g}" for edge in edges]
        names = [f"≤ {text}" for text in texts] + [f"> {texts[-1]}" if texts else "present"]
        return names, counts

    def _count_by_category(
        self, column: int, reference: Profile, bins: int
    ) -> tuple[list[str], Array]:
        theirs = reference._categories
        candidates = np.flatnonzero(theirs.columns == column)
        order = np.argsort(-theirs.counts[candidates], kind="stable")[:bins]
        top = theirs.ids[candidates[order]]
        ours = self._categories
        place = np.minimum(np.searchsorted(ours.ids, top), max(len(ours.ids) - 1, 0))
        found = ours.ids[place] == top if len(ours.ids) else np.zeros(len(top), bool)
        counts = np.where(found, ours.counts[place] if len(ours.ids) else 0, 0)
        others = self._entries[column] - counts.sum()
        names = [f"#{i}" for i in range(1, len(top) + 1)]
        return [*names, "others"], np.append(counts, others).astype(float)


class _Categories(NamedTuple):
    """Distinct hashes, ascending, with the number of their entries and their columns."""

    ids: Array
    counts: Array
    columns: Array


def _merge(a: _Categories, b: _Categories) -> _Categories:
    ids, place = np.unique(np.concatenate([a.ids, b.ids]), return_inverse=True)
    counts, columns = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    np.add.at(counts, place, np.concatenate([a.counts, b.counts]))
    np.maximum.at(columns, place, np.concatenate([a.columns, b.columns]))
    return _Categories(ids, counts, columns)
