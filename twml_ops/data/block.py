"""Parsed rows in memory: NumPy arrays in CSR form, sliced and permuted without a loop over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Ragged rows: row r holds the entries row_splits[r] .. row_splits[r + 1].

    Attributes:
        row_splits: int64 [R + 1], starting at 0.
        ids: int64 [K].
        values: float32 [K], or None where an entry is only an id.
    """

    row_splits: Array
    ids: Array
    values: Array | None = None

    def slice(self, start: int, stop: int) -> Rows:
        """Rows start .. stop; ids and values are views."""
        splits = self.row_splits[start : stop + 1]
        entries = slice(splits[0], splits[-1])
        values = None if self.values is None else self.values[entries]
        return Rows(splits - splits[0], self.ids[entries], values)

    def take(self, order: Array) -> Rows:
        """The rows `order` (int64 [R']), in that order."""
        starts = self.row_splits[order]
        lengths = self.row_splits[order + 1] - starts
        splits = _splits_of(lengths)
        entries = np.repeat(starts - splits[:-1], lengths) + np.arange(splits[-1])
        values = None if self.values is None else self.values[entries]
        return Rows(splits, self.ids[entries], values)

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """The rows of all `parts`, one after the other."""
        lengths = np.concatenate([np.diff(p.row_splits) for p in parts])
        values = [p.values for p in parts if p.values is not None]
        return Rows(
            _splits_of(lengths),
            np.concatenate([p.ids for p in parts]),
            np.concatenate(values) if values else None,
        )

    @staticmethod
    def from_lengths(lengths: Array, ids: Array, values: Array | None = None) -> Rows:
        """Rows of `lengths` (int64 [R]) entries each."""
        return Rows(_splits_of(lengths), ids, values)

    @staticmethod
    def from_columns(columns: Array, present: Array) -> Rows:
        """The present cells of a table, row by row: ids are categories.

        Args:
            columns: int64 [R, C], a category id in each present cell.
            present: bool [R, C].
        """
        return Rows(_splits_of(present.sum(axis=1)), columns[present])

    @staticmethod
    def from_numbers(table: Array) -> Rows:
        """The cells of float32 [R, C] that are not NaN, row by row: ids are column positions."""
        present = ~np.isnan(table)
        ids = np.broadcast_to(np.arange(table.shape[1], dtype=np.int64), table.shape)
        return Rows(_splits_of(present.sum(axis=1)), ids[present], table[present])

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        values = 0 if self.values is None else self.values.nbytes
        return int(self.row_splits.nbytes + self.ids.nbytes + values)


@dataclass(frozen=True)
class Block:
    """Consecutive examples.

    Attributes:
        labels: float32 [R], 0 or 1.
        groups: the feature groups the schema has, of `continuous`, `categorical`, `sparse`;
            each has R rows.
    """

    labels: Array
    groups: Mapping[str, Rows]

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> Block:
        """Examples start .. stop; the big arrays are views."""
        if start == 0 and stop == len(self):
            return self
        groups = {name: rows.slice(start, stop) for name, rows in self.groups.items()}
        return Block(self.labels[start:stop], groups)

    def take(self, order: Array) -> Block:
        """The examples `order`, in that order."""
        groups = {name: rows.take(order) for name, rows in self.groups.items()}
        return Block(self.labels[order], groups)

    @staticmethod
    def concat(blocks: Sequence[Block]) -> Block:
        """All examples, one block after the other; one block is returned as it is."""
        if len(blocks) == 1:
            return blocks[0]
        groups = {name: Rows.concat([b.groups[name] for b in blocks]) for name in blocks[0].groups}
        return Block(np.concatenate([b.labels for b in blocks]), groups)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return int(self.labels.nbytes) + sum(rows.nbytes for rows in self.groups.values())


def _splits_of(lengths: Array) -> Array:
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
