"""`csv:GLOB`: CSV files with a header line and a column `label`, gzipped if they end in .gz.

Fields are separated by commas, or by TABs in files that end in .tsv or .tsv.gz. An empty field is
a missing value. Without a schema the types of the columns are found by a look at the beginning of
the first file: numbers are continuous, everything else categorical. A bag, which a schema declares,
holds its categories separated by `|`, and its weights likewise. Fields may be quoted, see
`csv_rows`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from twml_ops import core
from twml_ops._category_hash import VERSION, column_key
from twml_ops.data.block import Array, Block
from twml_ops.data.columns import ArrowColumns, Columns, block_of, infer
from twml_ops.data.csv_rows import CsvFile, CsvRows
from twml_ops.data.errors import DataError, one_line, quote
from twml_ops.data.files import files_of
from twml_ops.data.schema import DEFAULT_LABELS, Schema
from twml_ops.data.source import Source
from twml_ops.data.units import Piece

_SEPARATOR = "|"
_SAMPLE_BYTES = 1 << 20
_NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"


class CsvSource(Source):
    """Reader of CSV files; all must have the header of the first."""

    def __init__(
        self,
        name: str,
        glob: str,
        *,
        schema: Schema | None = None,
        hash_version: int = VERSION,
        labels: Sequence[str] = DEFAULT_LABELS,
    ) -> None:
        """Only the beginning of each file is read.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            schema: the uses of the columns; None: by the types that the first file suggests.
            hash_version: of the category ids, if there is no schema.
            labels: names of the label columns, if there is no schema.

        Raises:
            FileNotFoundError: no file matches.
            DataError: a file is empty or has other columns than the first.
        """
        super().__init__(name)
        self._files = files_of(glob)
        self._delimiter = _delimiter(self._files[0])
        header, first = self._file(self._files[0]).beginning(_SAMPLE_BYTES)
        self._header = _names(header, self._delimiter)
        if schema is None:
            columns = self._guess(first)
            schema = infer(columns, self._files[0], labels)
            schema = dataclasses.replace(schema, hash_version=hash_version)
        if schema.sparse_dim:
            raise DataError(f"{name}: CSV files hold no raw sparse features")
        self._schema = schema
        for column in schema.columns:
            if column not in self._header:
                raise DataError(
                    f"{self._files[0]}: there is no column {column}, the columns are {self._header}"
                )
        numbers = {*schema.continuous, *schema.labels, schema.weight, schema.time}
        both = [n for n in self._header if n in numbers and n in _text_columns(schema)]
        if both:
            raise DataError(
                f"{name}: a column of a CSV file is read as numbers or as text; the schema uses "
                f"{', '.join(both)} as both"
            )
        self._types = {n: _type_of(n, schema) for n in schema.columns}
        self._plain = _plain_format(self._header, schema)

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return self._schema

    def _make_pieces(self) -> Sequence[Piece]:
        pieces: list[Piece] = []
        for path in self._files:
            pieces += self._file(path).pieces(len(pieces), self._parse, len)
        return pieces

    def _file(self, path: str) -> CsvFile:
        return CsvFile(path, self._delimiter, self._check_header)

    def _check_header(self, first: CsvRows) -> None:
        header = _names(first, self._delimiter)
        if header != self._header:
            raise DataError(
                f"{first.path}: its header {header} differs from that of "
                f"{self._files[0]}, {self._header}"
            )

    def _guess(self, rest: CsvRows) -> pa.Schema:
        """The types that Arrow reads the first rows of a file as; no text is a date."""
        if not rest.text:
            raise DataError(f"{rest.path}: there are no lines after the header")
        try:
            table = csv.read_csv(
                pa.BufferReader(rest.text),
                # In one thread Arrow numbers the line that it cannot read.
                self._read_options(rest, threads=False),
                csv.ParseOptions(
                    delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=False
                ),
                csv.ConvertOptions(timestamp_parsers=[], null_values=[""], check_utf8=False),
            )
        except pa.ArrowInvalid as e:
            raise _wrong_line(rest, str(e)) from None
        kinds = [_guessed(kind) for kind in table.schema.types]
        return pa.schema(zip(self._header, kinds, strict=True))

    def _parse(self, chunk: CsvRows) -> Block:
        if self._plain is not None and b'"' not in chunk.text:
            block = self._parse_plain(chunk)
            if block is not None:
                return block
        try:
            table = self._table(chunk, self._types)
        except pa.ArrowInvalid as e:
            raise self._what_is_wrong(chunk, str(e)) from None
        columns = _CsvColumns(table, chunk.where)
        return block_of(columns, self._schema, chunk.where, None)

    def _parse_plain(self, chunk: CsvRows) -> Block | None:
        """The examples of a chunk without quotes; None if a line is not as expected."""
        assert self._plain is not None
        text = np.frombuffer(chunk.text, np.uint8)
        kinds, keys = self._plain.kinds, [column_key(n) for n in self._plain.categories]
        numbers, ids, bad = core.parse_delimited(
            text, self._delimiter, kinds, keys, line_ends=chunk.row_ends
        )
        if bad >= 0:
            return None
        columns = _PlainColumns(
            dict(zip(self._plain.numbers, numbers.T, strict=True)),
            dict(zip(self._plain.categories, ids.T, strict=True)),
        )
        return block_of(columns, self._schema, chunk.where, None)

    def _read_options(self, chunk: CsvRows, threads: bool) -> csv.ReadOptions:
        """A block of Arrow must hold the longest row."""
        longest = int(np.diff(chunk.row_ends, prepend=0).max(initial=0))
        return csv.ReadOptions(
            column_names=self._header,
            use_threads=threads,
            block_size=max(1 << 20, longest) if threads else max(1, len(chunk.text)),
        )

    def _table(
        self, chunk: CsvRows, types: dict[str, pa.DataType], threads: bool = True
    ) -> pa.Table:
        return csv.read_csv(
            pa.BufferReader(chunk.text),
            self._read_options(chunk, threads),
            csv.ParseOptions(
                delimiter=self._delimiter,
                ignore_empty_lines=False,
                newlines_in_values=chunk.text.count(b"\n") > len(chunk),
            ),
            csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""],
                strings_can_be_null=True,
                check_utf8=False,
            ),
        ).combine_chunks()

    def _what_is_wrong(self, chunk: CsvRows, otherwise: str) -> DataError:
        """The first bad field of `chunk`, found by a second, slower look."""
        text = {name: pa.binary() for name in self._types}
        try:
            table = self._table(chunk, text, threads=False)
        except pa.ArrowInvalid as e:
            return _wrong_line(chunk, str(e))
        faults = []
        for name in (n for n, kind in self._types.items() if kind == pa.float64()):
            column = table[name].combine_chunks().cast(pa.string(), safe=False)
            bad = pc.invert(pc.match_substring_regex(column, _NUMBER)).fill_null(False)
            bad = bad.to_numpy(zero_copy_only=False)
            if bad.any():
                line = int(bad.argmax())
                faults.append((line, f"column {name}: expected a number, got", column[line]))
        if not faults:
            return DataError(f"{chunk.where(0)} or after: {one_line(ValueError(otherwise))}")
        line, fault, got = min(faults, key=lambda f: f[0])
        return DataError(f"{chunk.where(line)}: {fault} {quote(got.as_py())}")


class _Plain(NamedTuple):
    """What `core.parse_delimited` reads of the columns.

    Attributes:
        kinds: one character for each column.
        numbers: names of the columns that are numbers, in order.
        categories: names of the columns that are categories, in order.
    """

    kinds: str
    numbers: list[str]
    categories: list[str]


def _plain_format(header: list[str], schema: Schema) -> _Plain | None:
    """How to read the columns that a schema names; None if it has bags or an old hash."""
    if schema.bags or schema.hash_version != VERSION:
        return None
    names = schema.columns
    numbers = [n for n in header if n in names and _type_of(n, schema) == pa.float64()]
    categories = [n for n in header if n in names and n not in numbers]
    kinds = ("f" if n in numbers else "c" if n in categories else "-" for n in header)
    return _Plain("".join(kinds), numbers, categories)


class _PlainColumns(Columns):
    """Columns whose categories are hashed already."""

    def __init__(self, numbers: dict[str, Array], ids: dict[str, Array]) -> None:
        self._numbers, self._ids = numbers, ids

    @property
    def count(self) -> int:
        return len(next(iter((self._numbers | self._ids).values())))

    def has(self, name: str) -> bool:
        return name in self._numbers or name in self._ids

    def numbers(self, name: str) -> Array:
        return self._numbers[name]

    def ids(self, name: str, version: int) -> Array:
        assert version == VERSION
        return self._ids[name]

    def tokens(self, name: str) -> pa.Array:
        raise NotImplementedError

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        raise NotImplementedError

    def number_lists(self, name: str) -> tuple[Array, Array]:
        raise NotImplementedError


class _CsvColumns(ArrowColumns):
    """Columns of a CSV file, in which lists are text with a separator."""

    def __init__(self, table: pa.Table, where: object) -> None:
        batches = table.to_batches()
        empty = [pa.array([], kind) for kind in table.schema.types]
        batch = batches[0] if batches else pa.RecordBatch.from_arrays(empty, schema=table.schema)
        super().__init__(batch, where)  # type: ignore[arg-type]

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        lists = self._lists(name)
        return _lengths(lists), lists.flatten()

    def number_lists(self, name: str) -> tuple[Array, Array]:
        lists = self._lists(name)
        text = lists.flatten()
        try:
            numbers = text.cast(pa.string()).cast(pa.float64())
        except pa.ArrowInvalid:
            raise self._wrong_number(name, lists) from None
        return _lengths(lists), numbers.to_numpy(zero_copy_only=False)

    def _wrong_number(self, name: str, lists: pa.Array) -> DataError:
        """The first item of lists of text that is no number."""
        text = lists.flatten()
        bad = pc.invert(pc.match_substring_regex(text.cast(pa.string(), safe=False), _NUMBER))
        item = bad.to_numpy(zero_copy_only=False).argmax()
        row = int(np.searchsorted(np.cumsum(_lengths(lists)), item, side="right"))
        got = quote(text[int(item)].as_py())
        return DataError(f"{self._where(row)}: column {name}: expected a number, got {got}")

    def _lists(self, name: str) -> pa.Array:
        column = self._column(name)
        return pc.split_pattern(column, _SEPARATOR)


def _lengths(lists: pa.Array) -> Array:
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy()).astype(np.int64)


def _delimiter(path: str) -> str:
    return "\t" if path.removesuffix(".gz").endswith(".tsv") else ","


def _names(header: CsvRows, delimiter: str) -> list[str]:
    """The column names in the first row of a file."""
    try:
        table = csv.read_csv(
            pa.BufferReader(header.text.rstrip(b"\r\n") + b"\n"),
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        )
        names = [str(name) for name in table.column_names]
    except (pa.ArrowInvalid, UnicodeDecodeError) as e:
        raise DataError(f"{header.where(0)}: not a header: {one_line(e)}") from None
    if len(set(names)) < len(names):
        raise DataError(f"{header.where(0)}: the header has a name twice: {names}")
    return names


def _type_of(name: str, schema: Schema) -> pa.DataType:
    return pa.binary() if name in _text_columns(schema) else pa.float64()


def _text_columns(schema: Schema) -> set[str | None]:
    return {*schema.categorical, *schema.bag_weights.values(), schema.group}


def _guessed(kind: pa.DataType) -> pa.DataType:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return kind if number else pa.string()


def _wrong_line(chunk: CsvRows, message: str) -> DataError:
    """Arrow's message, its row as a line of the file."""
    row = re.search(r"Row #(\d+)", message)
    where = chunk.where(int(row[1]) - 1) if row else f"{chunk.where(0)} or after"
    return DataError(f"{where}: {one_line(ValueError(message))}")
