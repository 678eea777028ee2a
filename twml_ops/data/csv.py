"""`csv:GLOB`: CSV files with a header line and a column `label`, gzipped if they end in .gz.

Fields are separated by commas, by TABs in files that end in .tsv or .tsv.gz, or by the TABs,
semicolons or bars of a header without commas. An empty field is
a missing value, and so is text such as `NA`, `null` or `-` (`NULLS`) where numbers, integers or
bools are expected. Without a schema the types of the columns are found by a look at the beginning
of the first file, and further on for columns that are empty there; see `twml_ops/data/infer.py`.
A bag holds its categories separated by `|`, or by another character that the schema says, and its
weights likewise. Fields may be quoted, see `csv_rows`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from twml_ops import core
from twml_ops._arrow_columns import SEPARATOR, list_lengths, split_lists
from twml_ops._category_hash import column_key
from twml_ops.data.block import Array, Block
from twml_ops.data.column_uses import NO_USES, ColumnUses, schema_of, warn
from twml_ops.data.columns import ArrowColumns, Columns, Where, block_of
from twml_ops.data.csv_rows import CsvFile, CsvRows, check_utf8
from twml_ops.data.errors import DataError, listed, one_line, quote
from twml_ops.data.files import File, files_of
from twml_ops.data.infer import NOTHING, Finding, look_at
from twml_ops.data.partitions import Partitions
from twml_ops.data.schema import Schema
from twml_ops.data.source import Source
from twml_ops.data.text import decompressed_size, is_compressed, line_breaks, read_chunks
from twml_ops.data.text_values import (
    are_lossy,
    is_typed,
    numbers_of_texts,
    say,
)
from twml_ops.data.units import Piece

_SAMPLE_BYTES = 1 << 20
_EMPTY_GZ = 100  # a .gz of nothing has fewer bytes, with the longest usual name in it


class CsvSource(Source):
    """Reader of CSV files; all must have the header of the first."""

    def __init__(
        self,
        name: str,
        glob: str,
        *,
        schema: Schema | None = None,
        uses: ColumnUses = NO_USES,
    ) -> None:
        """Only the beginning of each file is read.

        Args:
            name: the source as the user wrote it.
            glob: path or pattern of the files, read in sorted order.
            schema: the uses of the columns; None: by the types that the first file suggests.
            uses: what the user says of columns, if there is no schema.

        Raises:
            FileNotFoundError: no file matches.
            DataError: a file is empty or has other columns than the first.
        """
        super().__init__(name)
        self._files = _with_text(files_of(glob))
        self._partitions = Partitions(glob, self._files)
        self._delimiter = _delimiter(self._files[0])
        header, first = self._file(self._files[0]).beginning(_SAMPLE_BYTES)
        check_utf8(header)
        self._header = _names(header, self._delimiter)
        self._guessed: set[str] = set()  # columns of numbers that no schema declares
        self._warned: set[str] = set()
        self._findings: Mapping[str, Finding] = {}
        if schema is None:
            looks = self._look(first)
            for folder, values in self._partitions.samples(without=self._header).items():
                looks[folder] = look_at(folder, values, may_be_numbers=True) or NOTHING
            schema, self._findings = schema_of(looks, uses, self._files[0].path)
            guessed = {n for n in schema.continuous if n not in uses.numeric}
            self._guessed = guessed & {*self._header}
            warn(name, self._findings)
        elif schema.typed is None:
            schema = dataclasses.replace(schema, typed=self._typed(first, schema))
        # Files of other formats, which have lists as well, are then read alike.
        separators = {**dict.fromkeys(schema.bags, SEPARATOR), **schema.separators}
        schema = dataclasses.replace(schema, separators=separators)
        if schema.sparse_dim:
            raise DataError(f"{name}: CSV files hold no raw sparse features")
        self._schema = schema
        inside = {*self._header}
        for file, column in itertools.product(self._files, schema.columns):
            if column not in inside and not self._partitions.have(file.path, column):
                raise DataError(
                    f"{file}: there is no column {column}, the columns are {listed(self._header)}"
                )
        numbers = {*schema.continuous, *schema.labels, schema.weight, schema.time}
        self._times_are_text = schema.time in schema.times or self._has_text(first, schema.time)
        if self._times_are_text:
            numbers.discard(schema.time)
        texts = _text_columns(schema)
        both = [n for n in self._header if n in numbers and n in texts]
        if both:
            raise DataError(
                f"{name}: a column of a CSV file is read as numbers or as text; the schema uses "
                f"{listed(both)} as both"
            )
        columns = {*schema.columns}
        used = [n for n in self._header if n in columns] or self._header[:1]
        self._types = dict.fromkeys(used, pa.binary())
        self._plain = _plain_format(self._header, schema, self._guessed)
        if self._times_are_text or schema.times or schema.positive_label is not None:
            self._plain = None

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return self._schema

    def _make_pieces(self) -> Sequence[Piece]:
        pieces: list[Piece] = []
        for file in self._files:
            pieces += self._file(file).pieces(len(pieces), self._parse, len)
        return pieces

    def _file(self, file: File) -> CsvFile:
        return CsvFile(file, self._delimiter, self._check_header)

    def _check_header(self, first: CsvRows) -> None:
        header = _names(first, self._delimiter)
        if header != self._header:
            raise DataError(
                f"{first.path}: its header {listed(header)} differs from that of "
                f"{self._files[0]}, {listed(self._header)}"
            )

    @property
    def findings(self) -> Mapping[str, Finding]:
        """See `Source`."""
        return self._findings

    def column_types(self) -> dict[str, pa.DataType]:
        """See `Source`; what is in a file is text."""
        return dict.fromkeys(self._header, pa.string()) | self._partitions.types(
            self._header, above=True
        )

    def raw_columns(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """See `Source`; an empty field is null."""
        inside = [n for n in self._header if n in types] or self._header[:1]
        for rows in self._chunks():
            batch = self._texts(rows, inside).to_batches()[0]
            try:
                yield self._partitions.filled(batch, rows.path, pa.schema(types.items()))
            except pa.ArrowInvalid as e:
                raise DataError(f"{rows.where(0)} or after: {one_line(e)}") from e

    def _look(self, rest: CsvRows) -> dict[str, Finding]:
        """What columns are, by the beginning of a file, or by later rows where that is empty."""
        if not rest.text:
            raise DataError(f"{rest.path}: there are no lines after the header")
        check_utf8(rest)
        found: dict[str, Finding] = {}
        for chunk in itertools.chain([rest], self._chunks()):
            texts = self._texts(chunk, [n for n in self._header if n not in found])
            for name in texts.column_names:
                column = texts[name].combine_chunks()
                if self._delimiter == ";":
                    column = _with_points(column)
                look = look_at(name, column, may_be_numbers=True)
                if look is not None:
                    found[name] = look
            if len(found) == len(self._header):
                break
        return {name: found.get(name, NOTHING) for name in self._header}

    def _has_text(self, rest: CsvRows, name: str | None) -> bool:
        """Whether a column has values other than numbers at the beginning of a file."""
        if name not in self._header or not rest.text:
            return False
        texts = self._texts(rest, [str(name)])[name].combine_chunks()
        return not bool(numbers_of_texts(texts)[1].all())

    def _chunks(self) -> Iterator[CsvRows]:
        """The rows of all files."""
        for file in self._files:
            yield from (rows for rows in self._file(file).in_order() if len(rows))

    def _typed(self, rest: CsvRows, schema: Schema) -> tuple[str, ...]:
        """The columns whose categories are integers or bools at the beginning of a file."""
        inside = {*self._header}
        names = [n for n in schema.categorical_columns if n in inside]
        if not rest.text or not names:
            return ()
        texts = self._texts(rest, names)
        typed = []
        for name in names:
            tokens = texts[name].combine_chunks()
            if name in schema.bags:
                separator = schema.separators.get(name, SEPARATOR)
                tokens = split_lists(tokens, separator).flatten()
            typed += [name] if is_typed(pc.unique(tokens)) else []
        return tuple(typed)

    def _texts(self, chunk: CsvRows, names: list[str]) -> pa.Table:
        """Columns as text; an empty field is null."""
        try:
            # In one thread Arrow numbers the line that it cannot read.
            return self._table(chunk, dict.fromkeys(names, pa.binary()), threads=False)
        except pa.ArrowInvalid as e:
            raise _wrong_line(chunk, str(e)) from None

    def _parse(self, chunk: CsvRows) -> Block:
        check_utf8(chunk)  # requests hold UTF-8: the categories of other bytes would all be new
        if self._plain is not None and b'"' not in chunk.text:
            block = self._parse_plain(chunk)
            if block is not None:
                return block
        try:
            table = self._table(chunk, self._types)
        except pa.ArrowInvalid:
            raise self._what_is_wrong(chunk) from None
        commas = self._delimiter == ";"
        columns = _CsvColumns(table, chunk.where, _separators(self._schema), commas)
        for name in self._guessed - self._warned:
            self._look_for_loss(chunk, name, table[name].combine_chunks())
        return self._block(columns, chunk)

    def _block(self, columns: Columns, chunk: CsvRows) -> Block:
        columns = self._partitions.added_to(columns, chunk.path)
        return block_of(columns, self._schema, chunk.where, None)

    def _parse_plain(self, chunk: CsvRows) -> Block | None:
        """The examples of a chunk without quotes; None if a line is not as expected."""
        assert self._plain is not None
        text = np.frombuffer(chunk.text, np.uint8)
        kinds, keys = self._plain.kinds, [column_key(n) for n in self._plain.categories]
        numbers, ids, bad, lossy = core.parse_delimited(
            text, self._delimiter, kinds, keys, line_ends=chunk.row_ends
        )
        if bad >= 0:
            return None
        if lossy >= 0:
            self._warn_of_loss(chunk, lossy)
        columns = _PlainColumns(
            len(chunk),
            dict(zip(self._plain.numbers, numbers.T, strict=True)),
            dict(zip(self._plain.categories, ids.T, strict=True)),
        )
        return self._block(columns, chunk)

    def _warn_of_loss(self, chunk: CsvRows, line: int) -> None:
        """Warns of the columns of a line that are read as numbers and could be ids."""
        if not self._guessed - self._warned:
            return
        fields = chunk.text.split(b"\n")[line].rstrip(b"\r").split(self._delimiter.encode())
        for name, field in zip(self._header, fields, strict=True):
            self._look_for_loss(chunk, name, pa.array([field], pa.binary()), line)

    def _look_for_loss(self, chunk: CsvRows, name: str, texts: pa.Array, line: int = 0) -> None:
        """Warns if texts of a column that was guessed to be of numbers could be ids."""
        if name not in self._guessed - self._warned:
            return
        lossy = are_lossy(texts)
        if lossy.any():
            self._warned.add(name)
            row = int(lossy.argmax())
            what = f"{chunk.where(line + row)}: column {name} is read as numbers, which lose"
            say(f"{what} something of {quote(texts[row].as_py())}", [name])

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
                newlines_in_values=line_breaks(chunk.text) > len(chunk),
            ),
            csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""],
                strings_can_be_null=True,
                check_utf8=False,
            ),
        ).combine_chunks()

    def _what_is_wrong(self, chunk: CsvRows) -> DataError:
        """The first bad line of `chunk`, found by a second, slower look."""
        try:
            self._table(chunk, self._types, threads=False)
        except pa.ArrowInvalid as e:
            return _wrong_line(chunk, str(e))
        return DataError(f"{chunk.where(0)} or after: the lines cannot be read")


class _Plain(NamedTuple):
    """The arguments about columns for `core.parse_delimited`.

    Attributes:
        kinds: one character for each column.
        numbers: names of the columns that are numbers, in order.
        categories: names of the columns that are categories, in order.
    """

    kinds: str
    numbers: list[str]
    categories: list[str]


def _plain_format(header: list[str], schema: Schema, guessed: set[str]) -> _Plain | None:
    """The plan for reading the columns of a schema; None if it has bags."""
    if schema.bags:
        return None
    texts, used = _text_columns(schema), {*schema.columns}

    def kind(name: str) -> str:
        if name not in used:
            return "-"
        if name in texts:
            return "t" if schema.is_typed(name) else "c"
        return "g" if name in guessed else "f"

    kinds = {name: kind(name) for name in header}
    numbers = [n for n in header if kinds[n] in "fg"]
    categories = [n for n in header if kinds[n] in "ct"]
    return _Plain("".join(kinds.values()), numbers, categories)


class _PlainColumns(Columns):
    """Columns whose categories are hashed already."""

    def __init__(self, count: int, numbers: dict[str, Array], ids: dict[str, Array]) -> None:
        self._count, self._numbers, self._ids = count, numbers, ids

    @property
    def count(self) -> int:
        return self._count

    def has(self, name: str) -> bool:
        return name in self._numbers or name in self._ids

    def numbers(self, name: str) -> Array:
        return self._numbers[name]

    def ids(self, name: str, typed: bool = False) -> Array:
        del typed  # the parser was told which are
        return self._ids[name]

    def tokens(self, name: str) -> pa.Array:
        raise NotImplementedError

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        raise NotImplementedError

    def number_lists(self, name: str) -> tuple[Array, Array]:
        raise NotImplementedError


class _CsvColumns(ArrowColumns):
    """Columns of a CSV file, in which lists are text with a separator."""

    def __init__(
        self, table: pa.Table, where: Where, separators: Mapping[str, str], decimal_commas: bool
    ) -> None:
        batches = table.to_batches()
        empty = [pa.array([], kind) for kind in table.schema.types]
        batch = batches[0] if batches else pa.RecordBatch.from_arrays(empty, schema=table.schema)
        super().__init__(batch, where, separators)
        self._decimal_commas = decimal_commas

    def numbers(self, name: str) -> Array:
        column = self._column(name)
        if self._decimal_commas:
            column = _with_points(column)
        numbers, good = numbers_of_texts(column)
        if not good.all():
            row = int(good.argmin())
            got = quote(column[row].as_py())
            raise DataError(f"{self._where(row)}: column {name}: expected a number, got {got}")
        return numbers

    def token_lists(self, name: str) -> tuple[Array, pa.Array]:
        lists = self._lists(name)
        return list_lengths(lists), lists.flatten()

    def number_lists(self, name: str) -> tuple[Array, Array]:
        lists = self._lists(name)
        numbers, good = numbers_of_texts(lists.flatten())
        if not good.all():
            item = int(good.argmin())
            row = int(np.searchsorted(np.cumsum(list_lengths(lists)), item, side="right"))
            got = quote(lists.flatten()[item].as_py())
            raise DataError(f"{self._where(row)}: column {name}: expected a number, got {got}")
        return list_lengths(lists), numbers

    def _lists(self, name: str) -> pa.Array:
        column = self._column(name)
        return split_lists(column, self._separators.get(name, SEPARATOR))


def _with_points(texts: pa.Array) -> pa.Array:
    """The texts with a decimal point for a decimal comma, which R and Excel write beside `;`."""
    thousands = pc.match_substring_regex(texts, r"^[^0-9]*[0-9]{1,3}(\.[0-9]{3})+,[0-9]+[^0-9]*$")
    texts = pc.if_else(thousands, pc.replace_substring(texts, ".", ""), texts)
    number = "^([-+]?[$€£¥]? ?[-+]?[0-9]+),([0-9]+)( ?[$€£¥%]?)$"
    return pc.replace_substring_regex(texts, number, r"\1.\2\3")


def _separators(schema: Schema) -> dict[str, str]:
    """Column → separator, of bags and of their weights."""
    of_weights = {
        weights: schema.separators[bag]
        for bag, weights in schema.bag_weights.items()
        if bag in schema.separators
    }
    return {**schema.separators, **of_weights}


_FIRST_LINE = re.compile(rb"\s*(\S[^\n]*)")  # that is not blank


def _delimiter(file: File) -> str:
    """A TAB in .tsv files; otherwise the delimiter of the header, by default a comma."""
    if file.path.removesuffix(".gz").endswith(".tsv"):
        return "\t"
    headers = (_FIRST_LINE.match(chunk.text) for chunk in read_chunks(file))
    header = next((found[1] for found in headers if found), b"")
    counts = {c: header.count(c.encode()) for c in "\t;|"}
    best = max(counts, key=lambda c: counts[c])
    return best if b"," not in header and counts[best] else ","


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
        counted = Counter(names)
        twice = {
            n: [i + 1 for i, m in enumerate(names) if m == n] for n in counted if counted[n] > 1
        }
        said = "; ".join(f"{quote(n)} in the columns {at}" for n, at in [*twice.items()][:5])
        raise DataError(f"{header.where(0)}: the header has a name twice: {said}")
    return names


def _with_text(files: list[File]) -> list[File]:
    """The files without the empty ones that Spark writes beside others; one stays."""

    def has_text(file: File) -> bool:
        return file.size > _EMPTY_GZ or (
            decompressed_size(file) > 0 if is_compressed(file) and file.size else file.size > 0
        )

    return [file for file in files if has_text(file)] or files[:1]


def _text_columns(schema: Schema) -> set[str | None]:
    return {
        *(*schema.categorical_columns, *schema.times, *schema.bag_weights.values()),
        schema.group,
    }


def _wrong_line(chunk: CsvRows, message: str) -> DataError:
    """Arrow's message, its row as a line of the file."""
    row = re.search(r"Row #(\d+)", message)
    where = chunk.where(int(row[1]) - 1) if row else f"{chunk.where(0)} or after"
    return DataError(f"{where}: {one_line(ValueError(message))}")
