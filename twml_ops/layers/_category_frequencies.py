"""How often each category occurs in a data set, counted in bounded memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_COMPACT_ENTRIES = 1 << 22
_MAX_CATEGORIES = 1 << 24


class _Counted(NamedTuple):
    """Distinct categories in ascending order of their ids, with their counts."""

    ids: Array
    counts: Array


class CategoryFrequencies:
    """The number of occurrences of each category of F fields, for `FrequentCategories`.

    Counts are exact as long as no field has more than 16 million categories. After that the rarer
    half of its categories is forgotten, and counts again from 0 if it returns.

    Memory: 16 bytes for each distinct category, and 64 MiB.

    Args:
        num_fields: F.
    """

    def __init__(self, num_fields: int) -> None:
        none = _Counted(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._counted = [none] * num_fields
        self._pending: list[list[Array]] = [[] for _ in range(num_fields)]
        self._num_pending = 0

    def update(self, field: int, ids: Array) -> None:
        """Counts categories.

        Args:
            field: position of their field.
            ids: int64 [K]; negative ids are missing values, which are not counted.
        """
        self._pending[field].append(ids[ids >= 0])
        self._num_pending += len(ids)
        if self._num_pending >= _COMPACT_ENTRIES:
            self._compact()

    def merge(self, other: CategoryFrequencies) -> None:
        """Adds the counts of another part of the data.

        Args:
            other: counts of as many fields.
        """
        self._compact()
        other._compact()
        for field, theirs in enumerate(other._counted):
            self._counted[field] = _sum([self._counted[field], theirs])

    def frequent(self, field: int, min_count: int, limit: int) -> Array:
        """The categories of a field that occur at least `min_count` times.

        Args:
            field: position of the field.
            min_count: smallest number of occurrences.
            limit: at most so many categories are returned, the most frequent ones; among equally
                frequent ones those with the smallest ids.

        Returns:
            int64 [U], ascending.
        """
        self._compact()
        ids, counts = self._counted[field]
        kept = np.flatnonzero(counts >= min_count)
        order = np.argsort(-counts[kept], kind="stable")[:limit]
        return np.sort(ids[kept[order]])

    def _compact(self) -> None:
        for field, pending in enumerate(self._pending):
            if pending:
                new = _Counted(*np.unique(np.concatenate(pending), return_counts=True))
                self._counted[field] = _sum([self._counted[field], new])
                pending.clear()
        self._num_pending = 0


def _sum(parts: list[_Counted]) -> _Counted:
    ids, place = np.unique(np.concatenate([p.ids for p in parts]), return_inverse=True)
    counts = np.zeros(len(ids), np.int64)
    np.add.at(counts, place, np.concatenate([p.counts for p in parts]))
    if len(ids) > _MAX_CATEGORIES:
        kept = np.sort(np.argsort(-counts, kind="stable")[: _MAX_CATEGORIES // 2])
        ids, counts = ids[kept], counts[kept]
    return _Counted(ids, counts)
