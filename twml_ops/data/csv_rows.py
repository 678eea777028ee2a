"""The rows of CSV files: quoted line breaks, blank lines, and where a part of a file begins.

A field that begins with a quote ends with one, and may hold delimiters, line breaks and doubled
quotes. Any other quote is an ordinary character. Lines with nothing but spaces and TABs are not
rows. `csv.py` reports rows with a wrong number of fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from twml_ops import core
from twml_ops.data import text as lines
from twml_ops.data.block import Array
from twml_ops.data.errors import DataError
from twml_ops.data.errors import quote as quoted
from twml_ops.data.files import File
from twml_ops.data.text import Chunk, TextFile, line_breaks, read_ahead, read_range

# So many bytes of a quoted field with line breaks may hold no quote. A part of a file with no quote
# in so many bytes before it therefore begins outside of quotes.
MAX_QUOTED_BYTES = 1 << 18
_BOM = b"\xef\xbb\xbf"
_OTHER_FILES = {
    b"\x1f\x8b": "one compressed by gzip: its name must end in .gz",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook: unpack it, or save it as CSV",
    b"\x28\xb5\x2f\xfd": "one compressed by zstd: decompress it",
    b"BZh": "one compressed by bzip2: decompress it",
    b"PAR1": "a Parquet file: write `parquet:` before its path",
}


@dataclass(frozen=True)
class CsvRows:
    """Whole rows of a file.

    Attributes:
        chunk: where they are.
        ends: int64, the position in the chunk after each row or blank line.
        blanks: int64, which of these are blank lines.
    """

    chunk: Chunk
    ends: Array
    blanks: Array

    @property
    def path(self) -> str:
        """The file, for messages."""
        return self.chunk.path

    def __len__(self) -> int:
        return len(self.ends) - len(self.blanks)

    @cached_property
    def text(self) -> bytes:
        """The rows, without blank lines."""
        if not len(self.blanks):
            return self.chunk.text
        lengths = np.diff(self.ends, prepend=0)
        kept = np.repeat(self._is_row, lengths)
        return np.frombuffer(self.chunk.text, np.uint8)[kept].tobytes()

    @cached_property
    def row_ends(self) -> Array:
        """int64 [R], the position in `text` after each row."""
        if not len(self.blanks):
            return self.ends
        return np.cumsum(np.diff(self.ends, prepend=0)[self._is_row])

    @property
    def _is_row(self) -> Array:
        is_row = np.ones(len(self.ends), bool)
        is_row[self.blanks] = False
        return is_row

    def where(self, row: int) -> str:
        """File and number of the first line of a row, for messages."""
        rows = np.flatnonzero(self._is_row)
        start = self.chunk.text.count(b"\n")  # there is no such row
        if row < len(rows):
            begin = int(self.ends[rows[row] - 1]) if rows[row] else 0
            start = self.chunk.text.count(b"\n", 0, begin)
        return self.chunk.where(start)

    def after_first(self) -> tuple[CsvRows, CsvRows]:
        """The first row, with the blank lines before it, and the rest."""
        lines_before = int(np.flatnonzero(self._is_row)[0]) + 1
        cut = int(self.ends[lines_before - 1])
        first, rest = self.chunk.text[:cut], self.chunk.text[cut:]
        line = self.chunk.first_line + first.count(b"\n")
        ends = np.split(self.ends, [lines_before])
        blanks = np.split(self.blanks, [lines_before - 1])
        return (
            CsvRows(self.chunk._replace(text=first), ends[0], blanks[0]),
            CsvRows(
                self.chunk._replace(text=rest, first_line=line),
                ends[1] - cut,
                blanks[1] - lines_before,
            ),
        )


class CsvFile(TextFile[CsvRows]):
    """A CSV file whose first row is a header, as parts of whole rows without the header.

    Args:
        path: the file, or its path; ends in .gz if it is compressed.
        delimiter: one character.
        check_header: raises an error if the header, a part with one row, is wrong.
    """

    def __init__(
        self, path: str | File, delimiter: str, check_header: Callable[[CsvRows], object]
    ) -> None:
        super().__init__(path)
        self._delimiter, self._check_header = delimiter, check_header
        self._inside = {0: False}  # by part of a plain file: whether its lines begin in quotes

    def in_order(self) -> Iterator[CsvRows]:
        """See `TextFile`."""
        parts = self._whole_rows(read_ahead(self.file))
        for rows in parts:
            if len(rows):
                header, rest = rows.after_first()
                self._check_header(header)
                yield rest
                break
        else:
            raise self._only_blank_lines()
        yield from parts

    def beginning(self, size: int) -> tuple[CsvRows, CsvRows]:
        """The header, and the rows after it in about `size` bytes."""
        text = b""
        for chunk in lines.read_chunks(self.file):
            text += chunk.text
            if len(text) >= size:
                whole = Chunk(text, self.path, 1)
                rows = next(self._whole_rows(iter([whole]), more=True))
                if len(rows) > 1:
                    return rows.after_first()
        rows = next(self._whole_rows(iter([Chunk(text, self.path, 1)])))
        if not len(rows):
            raise self._only_blank_lines()
        return rows.after_first()

    def _only_blank_lines(self) -> DataError:
        return DataError(f"{self.path}: the file holds no lines but blank ones")

    def _whole_rows(self, chunks: Iterator[Chunk], more: bool = False) -> Iterator[CsvRows]:
        """The lines of a file as rows; `more`: the file goes on after the last of them."""
        rest, line = b"", 1
        for k, chunk in enumerate(chunks):
            text = _without_bom(chunk) if k == 0 else chunk.text
            chunk = Chunk(rest + text, self.path, line)
            rows, _ = self._rows(chunk)
            rest = chunk.text[len(rows.chunk.text) :]
            line += line_breaks(rows.chunk.text)
            if len(rest) > lines.MAX_LINE_BYTES:
                raise self._not_closed(Chunk(rest, self.path, line))
            yield rows
        if rest and not more:
            raise self._not_closed(Chunk(rest, self.path, line))

    def part(self, number: int) -> CsvRows:
        """See `TextFile`."""
        chunk = self._lines(number)
        inside = self._begins_within_quotes(number)
        rows, is_open = self._rows(chunk, inside)
        self._inside[number + 1] = is_open
        if is_open and (not inside or rows.chunk.offset > chunk.offset):
            return self._with_open_row(rows, chunk)
        return rows

    def _lines(self, number: int) -> Chunk:
        """The lines after the header that begin in a part."""
        start, stop = max(number * self.step, self._header_size), (number + 1) * self.step
        if start >= stop:
            return Chunk(b"", self.path, 1, start)
        return read_range(self.file, start, stop)

    @cached_property
    def _header_size(self) -> int:
        """The bytes before the first row of a plain file, which has the right header."""
        header, _ = self.beginning(1)
        self._check_header(header)
        with self.file.reading() as stream:
            begins_with_bom = stream.read(len(_BOM)) == _BOM
        return len(header.chunk.text) + len(_BOM) * begins_with_bom

    def _begins_within_quotes(self, number: int) -> bool:
        """Whether the lines of a part begin within a quoted field."""
        known = number
        while known not in self._inside:
            if self._has_quote_before(known):
                known -= 1
            else:
                self._inside[known] = False
        for earlier in range(known, number):
            _, is_open = self._rows(self._lines(earlier), self._inside[earlier])
            self._inside[earlier + 1] = is_open
        return self._inside[number]

    def _has_quote_before(self, number: int) -> bool:
        """Whether there may be a quote in the last bytes before the lines of a part."""
        at = number * self.step
        start = max(at - MAX_QUOTED_BYTES, self._header_size)
        if start >= at:
            return False
        with self.file.reading() as stream:
            stream.seek(start)
            before = stream.read(at - start + MAX_QUOTED_BYTES)
        line_end = before.find(b"\n", at - start - 1)
        return line_end < 0 or b'"' in before[:line_end]

    def _with_open_row(self, rows: CsvRows, chunk: Chunk) -> CsvRows:
        """The rows of a part and the last one, which ends after the lines of the part."""
        begin = rows.chunk.offset + len(rows.chunk.text)
        at, more = chunk.offset + len(chunk.text), 2 * MAX_QUOTED_BYTES
        row = Chunk(chunk.text[begin - chunk.offset :], self.path, 1, begin)
        while True:
            added = read_range(self.file, at, at + more).text
            row, at, more = row._replace(text=row.text + added), at + len(added), 2 * more
            found, _ = self._rows(row)
            if len(found.ends):
                text = rows.chunk.text + row.text[: found.ends[0]]
                ends = np.append(rows.ends, len(text))
                return CsvRows(rows.chunk._replace(text=text), ends, rows.blanks)
            if not added or len(row.text) > lines.MAX_LINE_BYTES:
                raise self._not_closed(row)

    def _rows(self, chunk: Chunk, inside: bool = False) -> tuple[CsvRows, bool]:
        """The whole rows that begin in a chunk of lines, and whether it ends within quotes.

        With `inside` the chunk begins within a quoted field, whose row is left out.
        """
        text = np.frombuffer(chunk.text, np.uint8)
        ends, blanks, is_open, quote, fault, position = core.csv_rows(
            text, self._delimiter, inside=inside, max_quoted=MAX_QUOTED_BYTES
        )
        if fault:
            raise _fault(chunk, quote, fault, position)
        begin = 0
        if inside and len(ends):
            begin = int(ends[0])
            ends, blanks = ends[1:] - begin, blanks - 1
        whole = chunk.text[begin : begin + int(ends[-1])] if len(ends) else b""
        rows = CsvRows(chunk._replace(text=whole, offset=chunk.offset + begin), ends, blanks)
        return rows, is_open

    def _not_closed(self, row: Chunk) -> DataError:
        """The error of a row whose quotes do not end."""
        quote = core.csv_rows(np.frombuffer(row.text, np.uint8), self._delimiter)[3]
        where = row.where(row.text.count(b"\n", 0, quote))
        return DataError(f"{where}: the quoted text that begins here has no closing quote")


def _without_bom(chunk: Chunk) -> bytes:
    """The beginning of a file without the mark of UTF-8."""
    if chunk.text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{chunk.path}: the file is in UTF-16, expected UTF-8")
    for begin, what in _OTHER_FILES.items():
        if chunk.text.startswith(begin):
            raise DataError(f"{chunk.path}: expected a CSV file, got {what}")
    return chunk.text.removeprefix(_BOM)


def check_utf8(rows: CsvRows) -> None:
    """Raises a `DataError` that names the first row that is not UTF-8."""
    text = rows.text
    if text.isascii():
        return
    ends = pa.array([0, len(text)], pa.int64()).buffers()[1]
    whole = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(text)])
    try:
        whole.validate(full=True)  # several times as fast as `decode`
    except pa.ArrowInvalid:
        try:
            text.decode()
        except UnicodeDecodeError as e:
            where = rows.where(int(np.searchsorted(rows.row_ends, e.start, "right")))
            raise DataError(
                f"{where}: expected UTF-8, got the byte 0x{text[e.start]:02x}; `iconv -f latin1 -t "
                "utf-8` converts files of Latin-1"
            ) from None


def _fault(chunk: Chunk, quote: int, fault: str, position: int) -> DataError:
    def where(at: int) -> str:
        return chunk.where(chunk.text.count(b"\n", 0, at))

    if fault == "carriage return":
        return DataError(
            f"{where(position)}: a carriage return that no line feed follows; a line must end with "
            "a line feed"
        )
    if fault == "long quote":
        return DataError(
            f"{where(max(quote, 0))}: the quoted text that begins here has no closing quote in "
            f"{MAX_QUOTED_BYTES >> 10} KiB"
        )
    got = quoted(chunk.text[position : position + 80].partition(b"\n")[0], 20)
    return DataError(
        f"{where(position if quote < 0 else quote)}: the quoted text that begins here ends before "
        f"{got} in {where(position).rpartition(': ')[2]}; expected a delimiter or a line end after "
        "the closing quote, and two quotes for a quote within the text"
    )
