"""How often ids occur, and which of them have rows of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twml_ops import core
from twml_ops._category_hash import id_keys
from twml_ops.layers._arguments import check_signed

_COMPACT_ENTRIES = 1 << 22

Ints = npt.NDArray[np.int64]


class IdCounts:
    """How often each id of each field occurred.

    Processes that each read a part of the data count separately. Their counts are merged, and the
    result does not depend on how the rows were divided. Created by `CategoryRows.new_counts`.

    Memory: 24 bytes for each distinct id of a field, and up to 32 MiB for ids that have not been
    sorted yet.

    Args:
        num_fields: number of fields.
    """

    def __init__(self, num_fields: int) -> None:
        self.num_fields = num_fields
        self._keys, self._fields, self._counts = (np.zeros(0, np.int64) for _ in range(3))
        self._pending: list[list[Ints]] = [[] for _ in range(num_fields)]
        self._num_pending = 0

    def update(self, field: int, ids: Any) -> None:
        """Counts ids of a field.

        Args:
            field: number of the field.
            ids: integers of any shape; negative ones are missing values, which are not counted.

        Raises:
            ValueError: there is no such field, or the ids are no integers below 2^63. Nothing is
                counted.
        """
        flat = np.ravel(np.asarray(ids))
        if flat.dtype.kind not in "iu":
            raise ValueError(f"ids must be integers, got {flat.dtype}")
        check_signed("ids", flat)
        if not 0 <= field < self.num_fields:
            raise ValueError(f"field must be in [0, {self.num_fields}), got {field}")
        known = flat[flat >= 0].astype(np.int64)
        self._pending[field].append(id_keys(known, np.int64(field), core.hash_ids))
        self._num_pending += len(known)
        if self._num_pending >= max(_COMPACT_ENTRIES, len(self._keys)):
            self._compact()

    def _compact(self) -> None:
        if not self._num_pending:
            return
        pending, self._pending = self._pending, [[] for _ in range(self.num_fields)]
        self._num_pending = 0
        parts = []
        for field, keys in enumerate(pending):  # shorter arrays are sorted in less time
            if keys:
                found, counts = np.unique(np.concatenate(keys), return_counts=True)
                parts.append((found, np.full(len(found), field, np.int64), counts))
        self._add(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _add(self, keys: Ints, fields: Ints, counts: Ints) -> None:
        all_keys = np.concatenate([self._keys, keys])
        self._keys, first, inverse = np.unique(all_keys, return_index=True, return_inverse=True)
        self._fields = np.concatenate([self._fields, fields])[first]
        total = np.zeros(len(self._keys), np.int64)
        np.add.at(total, inverse.reshape(-1), np.concatenate([self._counts, counts]))
        self._counts = total

    def merge(self, *others: IdCounts) -> None:
        """Adds the counts of other parts of the data.

        Args:
            *others: counts of as many fields.

        Raises:
            ValueError: counts of another number of fields.
        """
        for other in others:
            if other.num_fields != self.num_fields:
                raise ValueError(
                    f"counts must be of {self.num_fields} fields, got {other.num_fields}"
                )
        for other in others:
            self.merge_state(other.state())

    def state(self) -> dict[str, Ints]:
        """The counts as arrays, to be sent to another process or saved.

        Returns:
            `keys` int64 [U], strictly ascending, a hash of each id and its field; `fields` and
            `counts` int64 [U].
        """
        self._compact()
        return {"keys": self._keys, "fields": self._fields, "counts": self._counts}

    def distinct(self, min_count: int = 1) -> list[int]:
        """Counts the distinct ids.

        Args:
            min_count: occurrences of an id that is counted.

        Returns:
            The number of ids of each field.
        """
        self._compact()
        frequent = self._fields[self._counts >= min_count]
        found: list[int] = np.bincount(frequent, minlength=self.num_fields).tolist()
        return found

    def merge_state(self, state: Mapping[str, Any]) -> None:
        """Adds what `state` returned, in another process or from a file.

        Args:
            state: arrays by name.

        Raises:
            ValueError: arrays of different lengths, or values that no counts have.
        """
        keys, fields, counts = (
            np.asarray(state[name], np.int64) for name in ("keys", "fields", "counts")
        )
        if keys.ndim != 1 or keys.shape != fields.shape or keys.shape != counts.shape:
            raise ValueError(
                "keys, fields and counts must be vectors of one length, got the shapes "
                f"{keys.shape}, {fields.shape} and {counts.shape}"
            )
        inside = (fields >= 0) & (fields < self.num_fields) & (counts > 0)
        if not inside.all() or np.any(keys[1:] <= keys[:-1]):
            raise ValueError(
                f"keys must be strictly ascending, fields in [0, {self.num_fields}) and counts "
                "positive"
            )
        self._compact()
        self._add(keys, fields, counts)


class IdRowMap(NamedTuple):
    """The ids that have rows of their own.

    Attributes:
        keys: int64 [1 + U], strictly ascending: -1, the key of no id, then the keys of the ids.
            There is always a key to find, also without ids.
        rows: int64 [1 + U], 0, then the number of each id in its field, from 1.
        sizes: int64 [fields], how many ids of each field have a row.
    """

    keys: Ints
    rows: Ints
    sizes: Ints

    @staticmethod
    def empty(num_fields: int) -> IdRowMap:
        """No id has a row."""
        return IdRowMap(
            np.array([-1], np.int64), np.zeros(1, np.int64), np.zeros(num_fields, np.int64)
        )

    def extended(self, counts: IdCounts, min_count: int, max_rows: Sequence[int]) -> IdRowMap:
        """Gives new rows to ids that occurred often; ids that have a row keep it.

        New ids follow the ids of their field from the most to the least frequent; equally frequent
        ones in the order of their keys.

        Args:
            counts: how often each id occurred.
            min_count: the least count of an id that gets a row.
            max_rows: the largest number of ids with rows in each field.
        """
        state = counts.state()
        new = (state["counts"] >= min_count) & ~np.isin(state["keys"], self.keys)
        keys, fields, number = (state[name][new] for name in ("keys", "fields", "counts"))
        order = np.lexsort((keys, -number, fields))
        keys, fields = keys[order], fields[order]
        first = np.searchsorted(fields, np.arange(len(self.sizes)))
        rows = self.sizes[fields] + 1 + np.arange(len(keys)) - first[fields]
        fits = rows <= np.asarray(max_rows, np.int64)[fields]
        sizes = self.sizes + np.bincount(fields[fits], minlength=len(self.sizes))
        keys = np.concatenate([self.keys, keys[fits]])
        order = np.argsort(keys)
        return IdRowMap(keys[order], np.concatenate([self.rows, rows[fits]])[order], sizes)
