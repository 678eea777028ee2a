"""Counts categories and sums their labels in each fold, for the category statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twml_ops import core
from twml_ops._category_hash import category_keys
from twml_ops.layers._arguments import check_signed

_FOLD_BITS = 31
_FOLD_SALT = 1
_COMPACT_ENTRIES = 1 << 22

Array = npt.NDArray[Any]


def fold_of(
    row_keys: Any, num_folds: int, boundaries: Sequence[int] | None, hash_ids: Any, search: Any
) -> Any:
    """The fold [B] of each row: by a hash of its key, or the block of time that its key lies in.

    Args:
        row_keys: int64 [B], NumPy or TensorFlow.
        num_folds: number of folds, K.
        boundaries: None, or the K - 1 ascending keys at which blocks of time begin.
        hash_ids: `core.hash_ids` or `ops.hash_ids`.
        search: `np.searchsorted` or `tf.searchsorted`.
    """
    if boundaries is None:
        return hash_ids(row_keys, _FOLD_BITS, _FOLD_SALT) % num_folds
    return search(np.asarray(boundaries, np.int64), row_keys, side="right")


class CategoryCounts:
    """How often each category occurred in each fold, and the sum of its labels there.

    Processes that each read a part of the data count separately. Their counts are merged, and the
    result does not depend on how the rows were divided, because the fold of a row is a function of
    its key alone. Created by `TargetStatistics.new_counts` or `CountStatistics.new_counts`.

    Memory: 8 + 16 · `num_folds` bytes for each distinct category or cross.

    Args:
        num_fields: number of categorical fields, F.
        crosses: tuples of two or more positions of fields.
        num_folds: number of folds, K.
        time_boundaries: None, or the K - 1 row keys at which blocks of time begin.
    """

    def __init__(
        self,
        num_fields: int,
        crosses: Sequence[Sequence[int]],
        num_folds: int,
        time_boundaries: Sequence[int] | None,
    ) -> None:
        self._about = {
            "num_fields": num_fields,
            "crosses": [list(c) for c in crosses],
            "num_folds": num_folds,
            "time_boundaries": None if time_boundaries is None else list(time_boundaries),
        }
        self._crosses = [tuple(c) for c in crosses]
        self._boundaries = time_boundaries
        self.num_folds = num_folds
        self._keys = np.zeros(0, np.int64)
        self._sums = np.zeros((0, num_folds, 2))  # of the weights and of the weighted labels
        self._totals = np.zeros((num_folds, 2))
        self._pending: list[tuple[Array, Array, Array]] = []
        self._num_pending = 0

    def update(self, ids: Any, row_keys: Any, labels: Any, weights: Any = None) -> None:
        """Counts a batch.

        Args:
            ids: int64 [B, F].
            row_keys: int64 [B].
            labels: in [0, 1], [B] or [B, 1].
            weights: not negative, [B] or [B, 1]; default 1.

        Raises:
            ValueError: shapes that differ, an id of 2^63 or more, or a label or weight out of its
                range. Nothing is counted.
        """
        ids = np.asarray(ids)
        fields = self._about["num_fields"]
        if ids.ndim != 2 or ids.shape[1] != fields or ids.dtype.kind not in "iu":
            raise ValueError(
                f"ids must be integers of shape [B, {fields}], got {ids.dtype} {list(ids.shape)}"
            )
        check_signed("ids", ids)
        y = _one_per_row("labels", labels, len(ids), 1.0)
        w = np.ones(len(ids)) if weights is None else _one_per_row("weights", weights, len(ids))
        rows = np.ravel(np.asarray(row_keys))
        if len(rows) != len(ids) or rows.dtype.kind not in "iu":
            raise ValueError(
                f"row_keys must be integers of shape [{len(ids)}], got {rows.dtype} {rows.shape}"
            )
        fold = fold_of(
            rows.astype(np.int64), self.num_folds, self._boundaries, core.hash_ids, np.searchsorted
        )
        sums = np.stack([w, w * y], axis=1)
        for column in range(2):
            self._totals[:, column] += np.bincount(fold, sums[:, column], self.num_folds)
        table = ids.astype(np.int64)
        keys = category_keys(table, self._crosses, core.hash_ids, np.take, np.concatenate)
        self._pending.append((keys, fold, sums))
        self._num_pending += keys.size
        if self._num_pending >= max(_COMPACT_ENTRIES, len(self._keys)):
            self._compact()

    def _compact(self) -> None:
        if not self._pending:
            return
        keys, folds, sums = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._num_pending = [], 0
        unique, inverse = _unique_by_column(keys)
        cells = (inverse * self.num_folds + folds).ravel()
        size, width = len(unique) * self.num_folds, keys.shape[1]
        of_keys = (np.bincount(cells, np.tile(column, width), size) for column in sums.T)
        new = np.stack(list(of_keys), axis=1)
        self._add(unique, new.reshape(len(unique), self.num_folds, 2))

    def _add(self, keys: Array, sums: Array) -> None:
        """Adds the sums of `keys`, which are strictly ascending. Arrays of sums never change."""
        if not len(self._keys):
            self._keys, self._sums = keys, sums
            return
        merged = np.concatenate([self._keys, keys])
        merged.sort(kind="stable")  # merges two ascending parts in linear time
        merged = merged[np.append(True, merged[1:] != merged[:-1])]
        total = np.zeros((len(merged), self.num_folds, 2))
        total[np.searchsorted(merged, self._keys)] += self._sums
        total[np.searchsorted(merged, keys)] += sums
        self._keys, self._sums = merged, total

    def merge(self, *others: CategoryCounts) -> None:
        """Adds the counts of other parts of the data.

        Args:
            *others: Counts with the same options.

        Raises:
            ValueError: counts of other fields, crosses or folds.
        """
        for other in others:
            if other._about != self._about:
                raise ValueError(f"counts must have the options {self._about}, got {other._about}")
        self._compact()
        for other in others:
            other._compact()
            self._add(other._keys, other._sums)
            self._totals = self._totals + other._totals

    def state(self) -> dict[str, Array]:
        """The counts as arrays, to be sent to another process or saved.

        Returns:
            `keys` int64 [U], strictly ascending; `counts` and `label_sums` float64 [U, K]; `totals`
            float64 [K, 2]: the number of rows and the sum of labels in each fold.
        """
        self._compact()
        return {
            "keys": self._keys,
            "counts": self._sums[:, :, 0],
            "label_sums": self._sums[:, :, 1],
            "totals": self._totals,
        }

    def merge_state(self, state: Mapping[str, Any]) -> None:
        """Adds what `state` returned, in another process or from a file.

        Args:
            state: Arrays by name.

        Raises:
            ValueError: arrays of other shapes or types, or keys that are not strictly ascending.
        """
        keys = np.asarray(state["keys"], np.int64)
        parts = [np.asarray(state[n], np.float64) for n in ("counts", "label_sums")]
        totals = np.asarray(state["totals"], np.float64)
        shape = (len(keys), self.num_folds)
        if any(p.shape != shape for p in parts) or totals.shape != (self.num_folds, 2):
            raise ValueError(
                f"counts and label_sums must have the shape {shape} and totals "
                f"{(self.num_folds, 2)}, got {[p.shape for p in parts]} and {totals.shape}"
            )
        if np.any(keys[1:] <= keys[:-1]):
            raise ValueError("keys must be strictly ascending")
        self._compact()
        self._add(keys, np.stack(parts, axis=2))
        self._totals = self._totals + totals


def _unique_by_column(keys: Array) -> tuple[Array, Array]:
    """The unique keys of keys [N, W], ascending, and where in them each key is, int64 [W, N].

    Columns are sorted one by one, which stays in the cache and compares fewer keys.
    """
    found = [np.unique(c, return_inverse=True) for c in np.ascontiguousarray(keys.T)]
    unique, places = np.unique(np.concatenate([of for of, _ in found]), return_inverse=True)
    parts = np.split(places.reshape(-1), np.cumsum([len(of) for of, _ in found])[:-1])
    pairs = zip(parts, found, strict=True)
    return unique, np.stack([part[inverse.reshape(-1)] for part, (_, inverse) in pairs])


def _one_per_row(name: str, given: Any, rows: int, largest: float = np.inf) -> Array:
    values = np.ravel(np.asarray(given, np.float64))
    if len(values) != rows:
        raise ValueError(f"{name} must have {rows} items, one for each row, got {len(values)}")
    bad = ~((values >= 0) & (values <= largest) & np.isfinite(values))
    if bad.any():
        row = int(bad.argmax())
        expected = "finite and not negative" if largest == np.inf else f"in [0, {largest:g}]"
        raise ValueError(f"{name}[{row}] must be {expected}, got {values[row]}")
    return values
