"""Parsed rows in memory: NumPy arrays, sliced and permuted without a loop over rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
        """Selects consecutive rows.

        Args:
            start: the first row.
            stop: one after the last row.

        Returns:
            The rows; ids and values are views.
        """
        splits = self.row_splits[start : stop + 1]
        entries = slice(splits[0], splits[-1])
        values = None if self.values is None else self.values[entries]
        return Rows(splits - splits[0], self.ids[entries], values)

    def take(self, order: Array) -> Rows:
        """Selects rows in any order.

        Args:
            order: int64 [R'], positions of the rows.

        Returns:
            The R' rows, copied.
        """
        starts = self.row_splits[order]
        lengths = self.row_splits[order + 1] - starts
        splits = _splits_of(lengths)
        entries = np.repeat(starts - splits[:-1], lengths) + np.arange(splits[-1])
        values = None if self.values is None else self.values[entries]
        return Rows(splits, self.ids[entries], values)

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """Joins rows.

        Args:
            parts: at least one.

        Returns:
            The rows of all parts, one part after the other.
        """
        lengths = np.concatenate([np.diff(p.row_splits) for p in parts])
        values = [p.values for p in parts if p.values is not None]
        return Rows(
            _splits_of(lengths),
            np.concatenate([p.ids for p in parts]),
            np.concatenate(values) if values else None,
        )

    @staticmethod
    def from_lengths(lengths: Array, ids: Array, values: Array | None = None) -> Rows:
        """Makes rows of given lengths.

        Args:
            lengths: int64 [R], the number of entries of each row.
            ids: int64 [K], the entries of all rows.
            values: float32 [K], or None.

        Returns:
            The R rows.
        """
        return Rows(_splits_of(lengths), ids, values)

    @staticmethod
    def from_columns(columns: Array, present: Array) -> Rows:
        """The present cells of a table, row by row: ids are categories.

        Args:
            columns: int64 [R, C], a category id in each present cell.
            present: bool [R, C].

        Returns:
            The R rows, entries in the order of the columns.
        """
        return Rows(_splits_of(present.sum(axis=1)), columns[present])

    @staticmethod
    def from_numbers(table: Array) -> Rows:
        """Makes rows of the cells of a table that are not NaN.

        Args:
            table: float32 [R, C].

        Returns:
            The R rows; ids are column positions.
        """
        present = ~np.isnan(table)
        ids = np.broadcast_to(np.arange(table.shape[1], dtype=np.int64), table.shape)
        return Rows(_splits_of(present.sum(axis=1)), ids[present], table[present])

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        values = 0 if self.values is None else self.values.nbytes
        return int(self.row_splits.nbytes + self.ids.nbytes + values)


class Table(ABC):
    """Columns with at most one entry a row, kept as a matrix; also readable as `Rows`."""

    @property
    @abstractmethod
    def rows(self) -> Rows:
        """The entries that are present, row by row, in the order of the columns."""

    @property
    def row_splits(self) -> Array:
        """The row splits of `rows`."""
        return self.rows.row_splits

    @property
    def ids(self) -> Array:
        """The ids of `rows`."""
        return self.rows.ids

    @property
    def values(self) -> Array | None:
        """The values of `rows`."""
        return self.rows.values


@dataclass(frozen=True)
class Numbers(Table):
    """Continuous features.

    Attributes:
        table: float32 [R, C], NaN where a number is missing.
    """

    table: Array

    @cached_property
    def rows(self) -> Rows:
        """The numbers that are present; ids are column positions."""
        return Rows.from_numbers(self.table)

    def slice(self, start: int, stop: int) -> Numbers:
        """Selects consecutive rows.

        Args:
            start: the first row.
            stop: one after the last row.

        Returns:
            The rows, a view.
        """
        return Numbers(self.table[start:stop])

    def take(self, order: Array) -> Numbers:
        """Selects rows in any order.

        Args:
            order: int64 [R'], positions of the rows.

        Returns:
            The R' rows, copied.
        """
        return Numbers(self.table[order])

    @staticmethod
    def concat(parts: Sequence[Numbers]) -> Numbers:
        """Joins rows.

        Args:
            parts: at least one.

        Returns:
            The rows of all parts, one part after the other.
        """
        return Numbers(np.concatenate([p.table for p in parts]))

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return int(self.table.nbytes)


@dataclass(frozen=True)
class Categories(Table):
    """Categorical columns.

    Attributes:
        table: int64 [R, F], the ids of the columns with one category, -1 where it is missing.
        bags: position among all categorical columns → the rows of a column with any number of
            categories; the other positions belong to the columns of `table`, in order.
    """

    table: Array
    bags: Mapping[int, Rows] = field(default_factory=dict)

    @cached_property
    def rows(self) -> Rows:
        """The categories that are present; weights of bags are left out."""
        if not self.bags:
            return Rows.from_columns(self.table, self.table >= 0)
        return self._rows_and_columns[0]

    @property
    def columns(self) -> Array:
        """int64 [K], the position among all categorical columns of each entry of `rows`."""
        if not self.bags:
            return np.nonzero(self.table >= 0)[1]
        return self._rows_and_columns[1]

    @cached_property
    def _rows_and_columns(self) -> tuple[Rows, Array]:
        """`rows` and `columns` where there are bags."""
        count, of_table = len(self.table), iter(self.table.T)
        rows, ids = [], []
        for position in range(self.table.shape[1] + len(self.bags)):
            bag = self.bags.get(position)
            if bag is None:
                column = next(of_table)
                rows.append(np.flatnonzero(column >= 0))
                ids.append(column[rows[-1]])
            else:
                rows.append(np.repeat(np.arange(count), np.diff(bag.row_splits)))
                ids.append(bag.ids)
        row, columns = np.concatenate(rows), np.repeat(np.arange(len(ids)), [len(i) for i in ids])
        order = np.argsort(row, kind="stable")  # by row, then by column
        lengths = np.bincount(row, minlength=count)
        return Rows.from_lengths(lengths, np.concatenate(ids)[order]), columns[order]

    def slice(self, start: int, stop: int) -> Categories:
        """Selects consecutive rows.

        Args:
            start: the first row.
            stop: one after the last row.

        Returns:
            The rows; the big arrays are views.
        """
        bags = {i: rows.slice(start, stop) for i, rows in self.bags.items()}
        return Categories(self.table[start:stop], bags)

    def take(self, order: Array) -> Categories:
        """Selects rows in any order.

        Args:
            order: int64 [R'], positions of the rows.

        Returns:
            The R' rows, copied.
        """
        bags = {i: rows.take(order) for i, rows in self.bags.items()}
        return Categories(self.table[order], bags)

    @staticmethod
    def concat(parts: Sequence[Categories]) -> Categories:
        """Joins rows.

        Args:
            parts: at least one.

        Returns:
            The rows of all parts, one part after the other.
        """
        bags = {i: Rows.concat([p.bags[i] for p in parts]) for i in parts[0].bags}
        return Categories(np.concatenate([p.table for p in parts]), bags)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return int(self.table.nbytes) + sum(rows.nbytes for rows in self.bags.values())


Group = Rows | Numbers | Categories


@dataclass(frozen=True)
class Block:
    """Consecutive examples.

    Attributes:
        labels: float32 [R] or, of several labels, [R, L]; 0 or 1.
        groups: the feature groups the schema has, of `continuous`, `categorical`, `sparse`;
            each has R rows.
        columns: what the schema has beside features and labels: `weight` (float32 [R], sample
            weights), `time` (float64 [R]; seconds since 1970 where the column holds timestamps)
            and `group` (int64 [R], a hash); and `row_keys` (int64 [R]), a key of each example of a
            source.
    """

    labels: Array
    groups: Mapping[str, Group]
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> Block:
        """Selects consecutive examples.

        Args:
            start: the first example.
            stop: one after the last example.

        Returns:
            The examples; the big arrays are views.
        """
        if start == 0 and stop == len(self):
            return self
        groups = {name: rows.slice(start, stop) for name, rows in self.groups.items()}
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return Block(self.labels[start:stop], groups, columns)

    def take(self, order: Array) -> Block:
        """Selects examples in any order.

        Args:
            order: int64 [R'], positions of the examples.

        Returns:
            The R' examples, copied.
        """
        groups = {name: rows.take(order) for name, rows in self.groups.items()}
        columns = {name: column[order] for name, column in self.columns.items()}
        return Block(self.labels[order], groups, columns)

    @staticmethod
    def concat(blocks: Sequence[Block]) -> Block:
        """Joins blocks.

        Args:
            blocks: at least one, with the same features.

        Returns:
            All examples, one block after the other; a single block as it is.
        """
        if len(blocks) == 1:
            return blocks[0]
        groups: dict[str, Group] = {}
        for name, first in blocks[0].groups.items():
            parts: Any = [b.groups[name] for b in blocks]
            groups[name] = type(first).concat(parts)
        columns = {
            name: np.concatenate([b.columns[name] for b in blocks]) for name in blocks[0].columns
        }
        return Block(np.concatenate([b.labels for b in blocks]), groups, columns)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        parts = [*self.groups.values(), *self.columns.values()]
        return int(self.labels.nbytes) + sum(int(part.nbytes) for part in parts)


def _splits_of(lengths: Array) -> Array:
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
