"""`parquet:GLOB`: Parquet files with a column `label`.

Without a schema float columns are continuous, and integers numbers or ids, as their names and
values say (`twml_ops/data/infer.py`); string, binary, bool and dictionary columns categorical, also
those that were dictionaries where the file was written; columns of lists of text or integers bags
of categories; timestamps and dates times; and the list columns `ids` (integers from 0) and `values`
raw sparse features. Without `values` they are all 1. Columns of other types are left out.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import pyarrow as pa
from pyarrow import parquet

from twml_ops._arrow_columns import is_day, is_token, is_typed_kind, with_plain_types
from twml_ops.data.arrow import BATCH_ROWS, ArrowSource, finding_of
from twml_ops.data.block import Block
from twml_ops.data.column_uses import NO_USES, ColumnUses
from twml_ops.data.columns import check_types
from twml_ops.data.errors import DataError, cannot_read, listed
from twml_ops.data.files import File, files_of
from twml_ops.data.infer import Finding, unusable
from twml_ops.data.partitions import Partitions
from twml_ops.data.remote import is_of_store
from twml_ops.data.schema import Schema
from twml_ops.data.units import Piece, SingleUnit, Unit

_MIN_ROWS = 1 << 13


class ParquetSource(ArrowSource):
    """Reader of Parquet files; all must have the columns of the first."""

    def __init__(
        self,
        name: str,
        glob: str,
        dim: int | None = None,
        *,
        schema: Schema | None = None,
        uses: ColumnUses = NO_USES,
    ) -> None:
        """Only the footers, and without a schema the first rows, are read.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            dim: the size of the id space of `ids`; None: found by a pass over the data.
            schema: the uses of the columns; None: by their types.
            uses: what the user says of columns, if there is no schema.

        Raises:
            FileNotFoundError: no file matches.
            DataError: a file is not Parquet, or has the wrong columns.
        """
        super().__init__(name)
        files = files_of(glob)
        self._partitions = Partitions(glob, files)
        self._files = [(file, _footer(file)) for file in files]
        first_path, first = self._files[0][0].path, self._files[0][1]
        names = _column_names(first_path, first)
        for path, footer in ((file.path, footer) for file, footer in self._files):
            if different := sorted({*names} ^ {*_column_names(path, footer)}):
                raise DataError(
                    f"{path}: its columns differ from the columns of {first_path}, which files "
                    f"share: only one of them has {listed(different)}"
                )
        schema = self._chosen_schema(schema, uses, first_path, names, self._all_types, self._look)
        used = {*schema.columns}
        self._columns = [name for name in names if name in used]
        checked: list[pa.Schema] = []
        for file, footer in self._files:
            columns = _schema(footer)
            if not any(columns.equals(known) for known in checked):
                add = partial(self._partitions.added_to, path=file.path)
                check_types(columns, schema, file.path, add)
                checked.append(columns)
        if schema.sparse_dim and dim is not None:
            schema = dataclasses.replace(schema, sparse_dim=dim)
        self._schema = schema

    def column_types(self) -> dict[str, pa.DataType]:
        """See `Source`."""
        types = self._all_types()
        of_folders = self._partitions.types(types.names, above=True)
        return dict(zip(types.names, types.types, strict=True)) | of_folders

    def raw_columns(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """See `Source`."""
        for file, footer in self._files:
            inside = [n for n in _types(footer) if n in types] or [*_types(footer)][:1]
            groups = [*range(footer.num_row_groups)]
            for batch, row in _batches(file, footer, groups, inside):
                try:
                    yield self._partitions.filled(batch, file.path, pa.schema(types.items()))
                except pa.ArrowException as e:
                    raise cannot_read(file.path, e, f"after row {row}") from e

    def _all_types(self) -> pa.Schema:
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

    def _look(self, columns: pa.Schema) -> dict[str, Finding]:
        """What the first rows of the first file, and the limits in all footers, say of columns."""
        # Spark writes files without rows, which say nothing.
        file, first = next((f for f in self._files if f[1].num_rows), self._files[0])
        inside = [n for n in _types(first) if unusable(n, columns.field(n).type) is None]
        times = [n for n in _types(first) if is_day(columns.field(n).type)]
        with _opened(file, first) as reader:
            names = [*inside, *times]
            rows = next(reader.iter_batches(BATCH_ROWS, columns=names), None) if names else None
            rows = None if rows is None else with_plain_types(rows)
        written, folders = _written_dictionaries(first), self._partitions.samples([*_types(first)])
        looks = {}
        for name, kind in zip(columns.names, columns.types, strict=True):
            values = folders.get(name)
            if values is None and rows is not None and name in rows.schema.names:
                values = rows.column(name)
            looks[name] = finding_of(
                *(name, kind, values, partial(self._limits, name)),
                is_dictionary=name in written,
                may_be_numbers=name in folders,
            )
        return looks

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
        for file, footer in self._files:
            row = 0
            for groups, rows in _joined_groups(footer):
                blocks = partial(self._row_groups, file, footer, groups, row)
                size = sum(self._bytes_of(footer, group) for group in groups)
                unit = Unit(blocks, lambda rows=rows: rows, size, f"{file}: from row {row} on")  # type: ignore[misc]
                pieces.append(SingleUnit(len(pieces), unit.with_rows(rows)))
                row += rows
        return pieces

    def _bytes_of(self, footer: parquet.FileMetaData, group: int) -> int:
        """The bytes of the columns that are read of a row group."""
        row_group = footer.row_group(group)
        columns = (row_group.column(i) for i in range(row_group.num_columns))
        names = ((c.path_in_schema.split(".")[0], c.total_uncompressed_size) for c in columns)
        read = {*self._columns}
        return sum(size for name, size in names if name in read)

    def _row_groups(
        self, file: File, footer: parquet.FileMetaData, groups: list[int], row: int
    ) -> Iterator[Block]:
        """The examples of row groups, the first of which is `row` of the file."""
        columns = self._columns or footer.schema.to_arrow_schema().names[:1]
        for batch, first in _batches(file, footer, groups, columns, row):
            where = partial(_place, file.path, first)
            yield self._block(batch, where, partial(self._partitions.added_to, path=file.path))


def _batches(
    file: File, footer: parquet.FileMetaData, groups: list[int], columns: list[str], row: int = 0
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of row groups in batches, and the number of the first row of each.

    The file is open only while they are read.
    """
    with _opened(file, footer) as reader:
        batches = reader.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns)
        while True:
            try:
                batch = next(batches, None)
                file.check()  # before anybody parses what is perhaps of another file
            except FileNotFoundError:
                raise
            except (OSError, pa.ArrowException) as e:
                if is_of_store(e):
                    raise
                raise cannot_read(file.path, e, f"after row {row}") from e
            if batch is None:
                return
            yield with_plain_types(batch), row
            row += len(batch)


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


def _place(path: str, first_row: int, row: int) -> str:
    return f"{path}: row {first_row + row}"


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
    if twice := sorted(n for n, count in Counter(names).items() if count > 1):
        raise DataError(f"{path}: has several columns with the name {listed(twice)}")
    return names


def _types(footer: parquet.FileMetaData) -> dict[str, pa.DataType]:
    columns = _schema(footer)
    return dict(zip(columns.names, columns.types, strict=True))


def _schema(footer: parquet.FileMetaData) -> pa.Schema:
    """The columns, without the views of text that newer writers name."""
    return with_plain_types(footer.schema.to_arrow_schema())


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


def _footer(file: File) -> parquet.FileMetaData:
    with _opened(file) as reader:
        return reader.metadata


@contextmanager
def _opened(
    file: File, footer: parquet.FileMetaData | None = None
) -> Iterator[parquet.ParquetFile]:
    """The reader of a file, which stays open in the block."""
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(file.reading())
            reader = parquet.ParquetFile(stream, metadata=footer, pre_buffer=file.is_remote)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as e:
            if is_of_store(e):
                raise
            raise cannot_read(file.path, e, "not a Parquet file") from e
        yield stack.enter_context(reader)
