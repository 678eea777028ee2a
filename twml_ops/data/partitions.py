"""Columns that are in the names of folders, as Hive and Spark write them: `day=2013-01-07/`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from glob import has_magic
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from twml_ops.data.block import Array
from twml_ops.data.columns import Columns
from twml_ops.data.errors import DataError, listed, quote
from twml_ops.data.files import File, named
from twml_ops.data.text_values import numbers_of_labels, numbers_of_texts, times_of_texts

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NULL = "__HIVE_DEFAULT_PARTITION__"


class Partitions:
    """The columns that are in the names of the folders of some files.

    Args:
        pattern: the folder or pattern that names the files.
        files: the files.

    Raises:
        DataError: the files are in folders with different names of columns.
    """

    def __init__(self, pattern: str, files: Sequence[File]) -> None:
        folders = {file.path: Path(file.path).parent.parts for file in files}
        self._values = {path: _values(parts) for path, parts in folders.items()}
        fixed = _fixed(pattern, folders)
        below = {path: _values(parts[fixed:]) for path, parts in folders.items()}
        names = [*below[files[0].path]]
        for path, values in below.items():
            if [*values] != names:
                raise DataError(
                    f"{path}: the names of its folders have the columns {listed([*values])}, the "
                    f"folders of {files[0]} have {listed(names)}"
                )
        self._names = names

    def types(self, without: Sequence[str], above: bool = False) -> dict[str, pa.DataType]:
        """The columns below the folder that was named, but `without`: integers or text.

        With `above`, the columns of the folders above it are there as well.
        """
        types = {}
        every = [*self._values.values()]
        names = [n for n in every[0] if all(n in v for v in every)] if above else self._names
        for name in names:
            if name not in without:
                values = [v[name] for v in every]
                integer = all(v is None or _INTEGER.fullmatch(v) for v in values)
                types[name] = pa.int64() if integer else pa.string()
        return types

    def samples(self, without: Sequence[str]) -> dict[str, pa.Array]:
        """The values of the same columns, of each file; integers if all are, otherwise text."""
        found = {}
        for name, kind in self.types(without).items():
            texts = pa.array([v[name] for v in self._values.values()], pa.string())
            found[name] = texts.cast(kind)
        return found

    def have(self, path: str, name: str) -> bool:
        """Whether a folder of a file has the column."""
        return name in self._values[path]

    def filled(self, batch: pa.RecordBatch, path: str, kinds: pa.Schema) -> pa.RecordBatch:
        """Columns of a file in the order of `kinds`, with those that only its folders have."""
        columns = []
        for name, kind in zip(kinds.names, kinds.types, strict=True):
            if name in batch.schema.names:
                columns.append(batch.column(name).cast(kind))
            else:
                value = pa.scalar(self._values[path][name], pa.string()).cast(kind)
                columns.append(pa.repeat(value, len(batch)))
        return pa.RecordBatch.from_arrays(columns, schema=kinds)

    def added_to(self, columns: Columns, path: str) -> Columns:
        """The columns of a file, and the columns that only its folders have."""
        values = self._values[path]
        return _WithPartitions(columns, path, values) if values else columns


class _WithPartitions(Columns):
    def __init__(self, inside: Columns, path: str, values: dict[str, str | None]) -> None:
        self._inside, self._path, self._values = inside, path, values

    @property
    def count(self) -> int:
        return self._inside.count

    def has(self, name: str) -> bool:
        return self._inside.has(name) or name in self._values

    def _is_inside(self, name: str) -> bool:
        return self._inside.has(name) or name not in self._values

    def numbers(self, name: str) -> Array:
        if self._is_inside(name):
            return self._inside.numbers(name)
        numbers, good = numbers_of_texts(pa.array([self._values[name]], pa.string()))
        if not good[0]:
            raise self._wrong(name, "a number")
        return np.full(self.count, numbers[0])

    def times(self, name: str, day_first: bool = False) -> Array:
        if self._is_inside(name):
            return self._inside.times(name, day_first)
        times, good = times_of_texts(pa.array([self._values[name]], pa.string()), day_first)
        if not good[0]:
            raise self._wrong(name, "a date or a number")
        return np.full(self.count, times[0])

    def labels(self, name: str) -> Array:
        if self._is_inside(name):
            return self._inside.labels(name)
        numbers, good = numbers_of_labels(pa.array([self._values[name]], pa.string()))
        if not good[0]:
            raise self._wrong(name, "a number, yes, no, true or false")
        return np.full(self.count, numbers[0])

    def tokens(self, name: str) -> pa.Array:
        if self._is_inside(name):
            return self._inside.tokens(name)
        indices = pa.array(np.zeros(self.count, np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array([self._values[name]], pa.string()))

    def time_texts(self, name: str) -> pa.Array:
        return self._inside.time_texts(name) if self._is_inside(name) else self.tokens(name)

    def ids(self, name: str, typed: bool = False) -> Array:
        if self._is_inside(name):
            return self._inside.ids(name, typed)
        return super().ids(name, typed)

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        if self._is_inside(name):
            return self._inside.token_lists(name)
        return np.ones(self.count, np.int64), self.tokens(name)

    def number_lists(self, name: str) -> tuple[Array, Array]:
        if self._is_inside(name):
            return self._inside.number_lists(name)
        raise self._wrong(name, "a list of numbers")

    def _wrong(self, name: str, expected: str) -> DataError:
        got = quote(f"{name}={self._values[name]}")
        return DataError(f"{self._path}: column {name}: expected {expected}, the folder is {got}")


def _values(folders: Sequence[str]) -> dict[str, str | None]:
    """Column → value of the folders that are called `column=value`."""
    pairs = (folder.partition("=") for folder in folders)
    found = {unquote(name): unquote(value) for name, sign, value in pairs if name and sign}
    return {name: None if value == _NULL else value for name, value in found.items()}


def _fixed(pattern: str, files: Collection[str]) -> int:
    """The number of folders that a pattern names without a wildcard."""
    path = named(pattern)
    parts = Path(path).parent.parts if path in files else Path(path).parts
    return next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
