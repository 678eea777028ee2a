"""Infers the column of each category from the order of the entries in a row.

A batch holds the hashes of the categories that are present, in the order of the columns, but not
their columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
UNKNOWN = -1


class KnownColumns(NamedTuple):
    """Hashes whose columns are known, for example from another data set.

    Attributes:
        ids: int64 [U], ascending hashes.
        columns: int64 [U], the column of each hash.
    """

    ids: Array
    columns: Array


def infer_columns(
    row_splits: Array, ids: Array, num_columns: int, known: KnownColumns | None = None
) -> Array:
    """The column of each entry, or `UNKNOWN` where the data do not determine it.

    The k-th of n entries in a row of C columns is in column k at least and in k + C − n at most. A
    hash belongs to one column, so the bounds of all entries with the same hash are intersected.
    Columns ascend within a row, so the bounds of neighbouring entries narrow each other. Both steps
    are repeated. Rare hashes in rows with many missing values remain unknown.

    Args:
        row_splits: int64 [R + 1], offsets of the rows.
        ids: int64 [K], hashes of categories, in each row in the order of the columns.
        num_columns: number of columns, C.
        known: columns of hashes that are known from other data; None: none. They are needed if a
            column is missing in every row, as it cannot be told from its neighbour then.

    Returns:
        int64 [K]. Entries with the same hash have the same column.
    """
    lengths = np.diff(row_splits)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    _, value = np.unique(ids, return_inverse=True)
    position = np.arange(len(rows)) - row_splits[:-1][rows]
    low, high = position, position + num_columns - lengths[rows]
    if known is not None and len(known.ids):
        place = np.minimum(np.searchsorted(known.ids, ids), len(known.ids) - 1)
        found = known.ids[place] == ids
        low, high = (np.where(found, known.columns[place], bound) for bound in (low, high))
    same_row = rows[1:] == rows[:-1]
    for _ in range(4):
        low, high = _intersect(low, value, np.maximum), _intersect(high, value, np.minimum)
        low[1:] = np.where(same_row, np.maximum(low[1:], low[:-1] + 1), low[1:])
        high[:-1] = np.where(same_row, np.minimum(high[:-1], high[1:] - 1), high[:-1])
    low, high = _intersect(low, value, np.maximum), _intersect(high, value, np.minimum)
    return np.where(low == high, low, UNKNOWN)


def _intersect(bounds: Array, value: Array, tighter: np.ufunc) -> Array:
    """Replaces each bound by the tightest bound of all entries with the same value."""
    best = np.full(
        value.max(initial=-1) + 1, -1 if tighter is np.maximum else np.iinfo(np.int64).max
    )
    tighter.at(best, value, bounds)
    return best[value]
