"""A sample of the rows of a data set that depends on the keys of the rows only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from twml_ops import core

Array = npt.NDArray[Any]

_BITS = 62
_SALT = 2


class RowSample:
    """Collects at most `max_rows` rows: the ones whose keys have the smallest hashes.

    Args:
        max_rows: number of rows kept, at least 1.

    Attributes:
        num_seen: number of rows that were given.
    """

    def __init__(self, max_rows: int) -> None:
        self.num_seen = 0
        self._max = max_rows
        self._parts: list[tuple[Array, ...]] = []
        self._held = 0

    @property
    def is_complete(self) -> bool:
        """Whether all rows that were given are in the sample."""
        return self.num_seen <= self._max

    def update(self, row_keys: Array, *columns: Array) -> None:
        """Adds a batch.

        Args:
            row_keys: int64 [B].
            *columns: arrays [B, ...], as many and of the same types in each call.
        """
        order = core.hash_ids(row_keys, _BITS, _SALT)
        self._parts.append((order, row_keys, *columns))
        self._held += len(row_keys)
        self.num_seen += len(row_keys)
        if self._held >= 2 * self._max:
            self._shrink()

    def rows(self) -> tuple[Array, ...]:
        """The row keys and the columns, in an order that depends on the row keys only.

        Returns:
            The arrays; nothing if no batch was added.
        """
        self._shrink()
        return self._parts[0][1:] if self._parts else ()

    def _shrink(self) -> None:
        if not self._parts:
            return
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        kept = np.argsort(columns[0], kind="stable")[: self._max]
        self._parts = [tuple(column[kept] for column in columns)]
        self._held = len(kept)
