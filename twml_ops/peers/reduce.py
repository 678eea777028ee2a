"""How a gather merges the updates of other ranks with the own one, in the order of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

Kind = Literal["average", "average_with_own", "sum", "replace"]


class Rows(Protocol):
    """A table, or an object that is indexed by an array of ids like one."""

    def __getitem__(self, ids: np.ndarray, /) -> np.ndarray:
        """Copies of the rows `ids`."""


class Update(NamedTuple):
    """An update of a vector.

    Attributes:
        rank: Rank of the sender.
        iteration: Its number.
        ids: int64, the rows that it has; None: the whole vector.
        values: The rows, or the whole vector.
    """

    rank: int
    iteration: int
    ids: np.ndarray | None
    values: np.ndarray


Reduce = Kind | Callable[[np.ndarray, list[Update]], Any]
"""The name of a reduction, or a function (own value, updates) -> new value."""


def check_reduce(reduce: Reduce) -> None:
    """Checks the name of a reduction.

    Args:
        reduce: The name, or a function.

    Raises:
        ValueError: There is no such reduction.
    """
    if not callable(reduce) and reduce not in get_args(Kind):
        raise ValueError(f"reduce must be a function or one of {get_args(Kind)}, got {reduce!r}")


def reduce_dense(kind: Kind, own: Update, received: Sequence[Update]) -> np.ndarray:
    """Merges whole vectors.

    Args:
        kind: "average": the mean of the received ones. "average_with_own": the mean of these and
            the own one. "sum": the sum of these and the own one. "replace": the newest one.
        own: The update of this rank.
        received: The updates of other ranks, at least one, in ascending order of the rank.

    Returns:
        The new value, in the type of the own one.
    """
    if kind == "replace":
        newest = max(received, key=lambda update: (update.iteration, update.rank))
        return newest.values.astype(own.values.dtype)
    updates = received if kind == "average" else _with_own(own, received)
    total = np.zeros(own.values.shape, _sum_type(own.values.dtype))
    for update in updates:
        total += update.values.astype(total.dtype, copy=False)
    if kind != "sum":
        total /= total.dtype.type(len(updates))
    return total.astype(own.values.dtype, copy=False)


def reduce_rows(
    kind: Kind, own: Update, received: Sequence[Update], value: Rows
) -> tuple[np.ndarray, np.ndarray]:
    """Merges rows of a table, each over the ranks that have sent it.

    Args:
        kind: See `reduce_dense`. "average_with_own" counts the own row where it is in the own
            update; "sum" adds the own row always.
        own: The update of this rank; only its `ids` and `rank` are used.
        received: The updates of other ranks, at least one, in ascending order of the rank.
        value: [N, ...], the table of this rank, or an object that is indexed by an array of ids.

    Returns:
        (int64 [U], the received ids in ascending order; their new rows in the type of the table).
    """
    assert own.ids is not None
    ids = np.unique(np.concatenate([u.ids for u in received if u.ids is not None]))
    mine = value[ids]
    if kind == "replace":
        rows = mine.copy()
        for update in sorted(received, key=lambda u: (u.iteration, u.rank)):
            assert update.ids is not None
            rows[np.searchsorted(ids, update.ids)] = update.values.astype(rows.dtype, copy=False)
        return ids, rows
    total = np.zeros(mine.shape, _sum_type(mine.dtype))
    counts = np.zeros(len(ids), total.dtype)
    updates = list(received)
    if kind != "average":
        at = np.arange(len(ids)) if kind == "sum" else np.flatnonzero(np.isin(ids, own.ids))
        updates = _with_own(own._replace(ids=ids[at], values=mine[at]), received)
    for update in updates:
        assert update.ids is not None
        at = np.searchsorted(ids, update.ids)
        total[at] += update.values.astype(total.dtype, copy=False)
        counts[at] += 1
    if kind != "sum":
        total /= counts.reshape(-1, *[1] * (total.ndim - 1))
    return ids, total.astype(mine.dtype, copy=False)


def _with_own(own: Update, received: Sequence[Update]) -> list[Update]:
    return sorted([*received, own], key=lambda update: update.rank)


def _sum_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)
