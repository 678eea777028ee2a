"""`parquet:GLOB`: Parquet files with a column `label`.

Without a schema integer and float columns are continuous, unless a float32 would round the
integers (`twml_ops/data/guess.py`); string, binary, bool and dictionary columns categorical, also
those that were dictionaries where the file was written; columns of lists of text or integers bags
of categories; and the list columns `ids` (integers from 0) and `values` raw sparse features.
Without `values` they are all 1.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from twml_ops._category_hash import VERSION
from twml_ops.data.block import Block
from twml_ops.data.columns import (
    ArrowColumns,
    block_of,
    check_types,
    infer,
    is_number,
    is_token,
    is_typed_kind,
    unusable,
)
from twml_ops.data.errors import DataError, cannot_read
from twml_ops.data.files import files_of, sparse_dim_of
from twml_ops.data.guess import Guess, first_rounded, guess_numbers, is_exact, say, warn
from twml_ops.data.partitions import Partitions
from twml_ops.data.schema import DEFAULT_LABELS, Schema
from twml_ops.data.source import Source
from twml_ops.data.units import Piece, SingleUnit, Unit

_BATCH_ROWS = 1 << 16
_MIN_ROWS = 1 << 13


class ParquetSource(Source):
    """Reader of Parquet files; all must have the columns of the first."""

    def __init__(
        self,
        name: str,
        glob: str,
        dim: int | None = None,
        *,
        schema: Schema | None = None,
        hash_version: int = VERSION,
        labels: Sequence[str] = DEFAULT_LABELS,
        drop_unusable: bool = False,
    ) -> None:
        """Only the footers are read.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            dim: the size of the id space of `ids`; None: found by a pass over the data.
            schema: the uses of the columns; None: by their types.
            hash_version: the hash version of the category ids, if there is no schema.
            labels: names of the label columns, if there is no schema.
            drop_unusable: leave out columns of other types, see `dropped`, instead of an error.

        Raises:
            FileNotFoundError: no file matches.
            DataError: a file is not Parquet, or has the wrong columns.
        """
        super().__init__(name)
        self._dropped: Mapping[str, str] = {}
        paths = files_of(glob)
        self._partitions = Partitions(glob, paths)
        self._files = [(path, _footer(path)) for path in paths]
        self._guessed: set[str] = set()  # columns of numbers of which nothing has been said
        first_path, first = self._files[0]
        names = _column_names(first_path, first)
        for path, footer in self._files:
            if different := sorted({*names} ^ {*_column_names(path, footer)}):
                raise DataError(
                    f"{path}: its columns differ from the columns of {first_path}, which files "
                    f"share: only one of them has {', '.join(different)}"
                )
        if schema is None:
            columns = self._all_types(labels)
            self._dropped = {
                n: why
                for n, kind in zip(columns.names, columns.types, strict=True)
                if drop_unusable and n not in labels and (why := unusable(n, kind))
            }
            for column in self._dropped:
                columns = columns.remove(columns.get_field_index(column))
            guesses = self._guess(columns, labels)
            schema = infer(_with_categories(columns, guesses), first_path, labels)
            schema = dataclasses.replace(schema, hash_version=hash_version)
            self._guessed = {n for n in schema.continuous if n in names and not guesses[n].ids}
            warn(name, guesses)
        if schema.typed is None:
            columns = self._all_types(())
            types = dict(zip(columns.names, columns.types, strict=True))
            typed = tuple(n for n in schema.categorical if n in types and is_typed_kind(types[n]))
            schema = dataclasses.replace(schema, typed=typed)
        self._columns = [name for name in names if name in schema.columns]
        checked: list[pa.Schema] = []
        for path, footer in self._files:
            columns = footer.schema.to_arrow_schema()
            if not any(columns.equals(known) for known in checked):
                check_types(columns, schema, path, partial(self._partitions.added_to, path=path))
                checked.append(columns)
        if schema.sparse_dim and dim is not None:
            schema = dataclasses.replace(schema, sparse_dim=dim)
        self._schema = schema
        self._dim = schema.sparse_dim if schema.sparse_dim > 0 else None

    @property
    def dropped(self) -> Mapping[str, str]:
        """See `Source`."""
        return self._dropped

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        if self._schema.sparse_dim < 0:
            dim = sparse_dim_of(self.blocks())
            self._schema = dataclasses.replace(self._schema, sparse_dim=dim)
        return self._schema

    def _all_types(self, labels: Sequence[str]) -> pa.Schema:
        """The columns of all files and of their folders, of types that hold what all have."""
        path, footer = self._files[0]
        types = dict(_types(footer))
        for other, footer in self._files[1:]:
            for name, kind in _types(footer).items():
                joined = _joined_type(types[name], kind)
                if joined is None:
                    raise DataError(
                        f"{other}: column {name} has type {kind}, in {path} it has {types[name]}"
                    )
                types[name] = joined
        types |= self._partitions.types(without=[*types])
        return pa.schema(types.items())

    def _guess(self, columns: pa.Schema, labels: Sequence[str]) -> dict[str, Guess]:
        """Guesses of numbers by first rows, the limits in all footers, and names of folders."""
        kinds = zip(columns.names, columns.types, strict=True)
        folders = self._partitions.guesses(without=_types(self._files[0][1]))
        guesses = {n: guess for n, guess in folders.items() if n not in labels}
        names = [n for n, kind in kinds if is_number(kind) and n not in (*labels, *folders)]
        # Spark writes files without rows, which say nothing.
        path, first = next((f for f in self._files if f[1].num_rows), self._files[0])
        with _open(path, first) as file:
            rows = next(file.iter_batches(_BATCH_ROWS, columns=names), None) if names else None
        written = _written_dictionaries(first)
        for name in names:
            guess = guess_numbers(name, rows.column(name)) if rows is not None else Guess(True)
            if name in written:
                guess = Guess(False, True)
            elif guess.number and pa.types.is_integer(columns.field(name).type):
                for limit in self._limits(name):
                    if not is_exact(np.array([limit]))[0]:
                        guess = guess_numbers(name, pa.array([limit]))
            guesses[name] = guess
        return guesses

    def _limits(self, name: str) -> Iterator[int]:
        """The smallest and the largest values of a column, as the footers have them."""
        for _, footer in self._files:
            for group in range(footer.num_row_groups):
                row_group = footer.row_group(group)
                for i in range(row_group.num_columns):
                    column = row_group.column(i)
                    if column.path_in_schema == name and column.is_stats_set:
                        limits = column.statistics
                        yield from (limits.min, limits.max) if limits.has_min_max else ()

    def _make_pieces(self) -> Sequence[Piece]:
        pieces: list[Piece] = []
        for path, footer in self._files:
            row = 0
            for groups, rows in _joined_groups(footer):
                blocks = partial(self._row_groups, path, footer, groups, row)
                size = sum(self._bytes_of(footer, group) for group in groups)
                unit = Unit(blocks, lambda rows=rows: rows, size, f"{path}: from row {row} on")  # type: ignore[misc]
                pieces.append(SingleUnit(len(pieces), unit.with_rows(rows)))
                row += rows
        return pieces

    def _bytes_of(self, footer: parquet.FileMetaData, group: int) -> int:
        """The bytes of the columns that are read of a row group."""
        row_group = footer.row_group(group)
        columns = (row_group.column(i) for i in range(row_group.num_columns))
        names = ((c.path_in_schema.split(".")[0], c.total_uncompressed_size) for c in columns)
        return sum(size for name, size in names if name in self._columns)

    def _row_groups(
        self, path: str, footer: parquet.FileMetaData, groups: list[int], row: int
    ) -> Iterator[Block]:
        """The examples of row groups, the first of which is `row` of the file.

        The file is open only while they are read.
        """
        columns = self._columns or footer.schema.to_arrow_schema().names[:1]
        with _open(path, footer) as file:
            batches = file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns)
            while True:
                try:
                    batch = next(batches, None)
                except (OSError, pa.ArrowException) as e:
                    raise cannot_read(path, e, f"after row {row}") from e
                if batch is None:
                    return
                yield self._block(batch, path, row)
                row += len(batch)

    def _block(self, batch: pa.RecordBatch, path: str, first_row: int) -> Block:
        def where(row: int) -> str:
            return f"{path}: row {first_row + row}"

        for name in sorted(self._guessed):
            rounded = first_rounded(batch.column(name))
            if rounded is not None:
                self._guessed.discard(name)
                got = batch.column(name)[rounded].as_py()
                what = f"{where(rounded)}: column {name} is read as numbers, which lose"
                say(f"{what} something of {got}", [name])
        columns = self._partitions.added_to(ArrowColumns(batch, where), path)
        return block_of(columns, self._schema, where, self._dim)


def _joined_groups(footer: parquet.FileMetaData) -> Iterator[tuple[list[int], int]]:
    """(row groups, their rows): small row groups are read together."""
    groups: list[int] = []
    rows = 0
    for group in range(footer.num_row_groups):
        groups.append(group)
        rows += footer.row_group(group).num_rows
        if rows >= _MIN_ROWS:
            yield groups, rows
            groups, rows = [], 0
    if groups:
        yield groups, rows


def _with_categories(columns: pa.Schema, guesses: dict[str, Guess]) -> pa.Schema:
    """The columns, in which numbers that are categories are dictionaries of text."""
    for name, guess in guesses.items():
        if not guess.number:
            i = columns.get_field_index(name)
            kind = pa.dictionary(pa.int32(), pa.string())
            columns = columns.set(i, pa.field(name, kind))
    return columns


def _written_dictionaries(footer: parquet.FileMetaData) -> set[str]:
    """The columns that were dictionaries where a file was written; Arrow reads some as numbers."""
    saved = (footer.metadata or {}).get(b"ARROW:schema")
    if saved is None:
        return set()
    try:
        columns = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(saved)))
    except (ValueError, OSError, pa.ArrowException):
        return set()
    kinds = zip(columns.names, columns.types, strict=True)
    return {name for name, kind in kinds if pa.types.is_dictionary(kind)}


def _column_names(path: str, footer: parquet.FileMetaData) -> list[str]:
    names: list[str] = footer.schema.to_arrow_schema().names
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise DataError(f"{path}: has several columns with the name {', '.join(twice)}")
    return names


def _types(footer: parquet.FileMetaData) -> dict[str, pa.DataType]:
    columns = footer.schema.to_arrow_schema()
    return dict(zip(columns.names, columns.types, strict=True))


def _joined_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """A type that holds the values of both, or None."""
    if first == second:
        return first
    try:
        both = [pa.schema([("", kind)]) for kind in (first, second)]
        return pa.unify_schemas(both, promote_options="permissive").types[0]
    except pa.ArrowException:
        texts = all(is_token(k) and not is_typed_kind(k) for k in (first, second))
        return pa.string() if texts else None


def _footer(path: str) -> parquet.FileMetaData:
    with _open(path) as file:
        return file.metadata


def _open(path: str, footer: parquet.FileMetaData | None = None) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(path, metadata=footer)
    except (OSError, pa.ArrowException) as e:
        raise cannot_read(path, e, "not a Parquet file") from e
