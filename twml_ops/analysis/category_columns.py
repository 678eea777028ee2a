"""Which column a category belongs to: the hashes do not tell, the order of the columns does."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Known(NamedTuple):
    """Columns that are known from elsewhere.

    Attributes:
        ids: int64 [U], ascending.
        columns: int64 [U].
    """

    ids: Array
    columns: Array


def columns_of(
    row_splits: Array, ids: Array, num_columns: int, known: Known | None = None
) -> Array:
    """The column of each entry, or −1 where it stays open.

    The k-th of n entries in a row of C columns is at least column k and at most k + C − n. A hash
    belongs to one column, so the bounds of all its entries meet, and neighbours in a row push them
    further. Entries that stay undecided (rare values in rows with much missing) belong to none.

    Args:
        row_splits: int64 [R + 1].
        ids: int64 [K], category hashes, in each row in the order of the columns.
        num_columns: C.
        known: columns of some hashes. Needed where one column is always missing: nothing then
            tells it from its neighbour.

    Returns:
        int64 [K]; entries of one hash get one answer.
    """
    lengths = np.diff(row_splits)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    _, value = np.unique(ids, return_inverse=True)
    position = np.arange(len(rows)) - row_splits[:-1][rows]
    low, high = position, position + num_columns - lengths[rows]
    if known is not None and len(known.ids):
        place = np.minimum(np.searchsorted(known.ids, ids), len(known.ids) - 1)
        told = known.ids[place] == ids
        low, high = (np.where(told, known.columns[place], bound) for bound in (low, high))
    same_row = rows[1:] == rows[:-1]
    for _ in range(4):
        low, high = _meet(low, value, np.maximum), _meet(high, value, np.minimum)
        low[1:] = np.where(same_row, np.maximum(low[1:], low[:-1] + 1), low[1:])
        high[:-1] = np.where(same_row, np.minimum(high[:-1], high[1:] - 1), high[:-1])
    low, high = _meet(low, value, np.maximum), _meet(high, value, np.minimum)
    return np.where(low == high, low, -1)


def _meet(bounds: Array, value: Array, tighter: np.ufunc) -> Array:
    """The tightest bound of each value, given to all its entries."""
    best = np.full(
        value.max(initial=-1) + 1, -1 if tighter is np.maximum else np.iinfo(np.int64).max
    )
    tighter.at(best, value, bounds)
    return best[value]
