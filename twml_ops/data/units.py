"""The parts in which a source is read: independent pieces, made of units.

A piece is a row group, a range of a plain text file, or a whole compressed file. Pieces may be read
in any order. The units of a piece (a chunk of lines, a batch of records) are reached one after the
other, and are parsed, counted or skipped independently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from twml_ops.data.block import Block
from twml_ops.data.errors import DataError


@dataclass(frozen=True)
class Part:
    """Every `count`-th unit of a source, from `index` on.

    Attributes:
        index: in [0, count).
        count: into how many parts the units are divided.
    """

    index: int = 0
    count: int = 1

    def first_from(self, number: int) -> int:
        """The number of units from `number` to the next unit of the part."""
        return (self.index - number) % self.count


class Unit:
    """Consecutive examples that are parsed together.

    Args:
        parse: parses them, into blocks of any size.
        count: their number, for less work than `parse`.
        size: bytes of the file that hold them, decompressed.
        place: the file and the part of it, for messages.
    """

    def __init__(
        self,
        parse: Callable[[], Iterable[Block]],
        count: Callable[[], int],
        size: int = 0,
        place: str = "a part of the data",
    ) -> None:
        self._parse, self._count, self.size, self._place = parse, count, size, place
        self._rows: int | None = None

    def rows(self) -> int:
        """The number of examples. May read the unit, once."""
        if self._rows is None:
            self._rows = self._count()
        return self._rows

    def with_rows(self, rows: int) -> Unit:
        """The same unit, of which the number of examples is known."""
        self._rows = rows
        return self

    def blocks(self) -> Iterator[Block]:
        """Parses the examples.

        Raises:
            DataError: they are not as many as were counted.
        """
        rows = 0
        for block in self._parse():
            rows += len(block)
            yield block
        if self._rows is not None:
            check_rows(self._place, self._rows, rows)
        self._rows = rows

    def slice(self, start: int, stop: int | None) -> Unit:
        """The examples start .. stop (None: to the end). A slice without any parses nothing."""
        if start == 0 and stop is None:
            return self

        def count() -> int:
            end = self.rows() if stop is None else min(stop, self.rows())
            return max(0, end - start)

        def parse() -> Iterator[Block]:
            if (start == 0 and stop != 0) or count():
                yield from in_range(self.blocks(), start, stop)

        return Unit(parse, count, self.size, self._place)


def check_rows(place: str, counted: int, parsed: int) -> None:
    """Raises a `DataError` where a unit does not have as many examples as were counted."""
    if counted != parsed:
        raise DataError(
            f"{place}: {counted} examples were counted and {parsed} were parsed; is the file "
            "being changed?"
        )


class Piece(ABC):
    """Examples that can be read without the others of a source.

    Args:
        number: the unit k is dealt to the workers as the unit `number` + k.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._unit_rows: list[int] | None = None

    @abstractmethod
    def units(self) -> Iterator[Unit]:
        """The units, in order."""

    def unit_rows(self) -> list[int]:
        """The examples of each unit. May take a pass over the piece, once."""
        if self._unit_rows is None:
            self._unit_rows = [unit.rows() for unit in self.units()]
        return self._unit_rows

    def known_unit_rows(self) -> list[int] | None:
        """The result of `unit_rows` if it takes no pass; None otherwise."""
        return self._unit_rows

    def remember_unit_rows(self, rows: list[int]) -> None:
        """Keeps what a pass over the piece has found."""
        self._unit_rows = rows

    def rows(self) -> int:
        """The number of examples. May take a pass over the piece, once."""
        return sum(self.unit_rows())


class SingleUnit(Piece):
    """A piece of one unit, which can be reached without reading anything."""

    def __init__(self, number: int, unit: Unit) -> None:
        super().__init__(number)
        self._unit = unit

    def units(self) -> Iterator[Unit]:
        """The unit."""
        yield self._unit


class StoredPiece(Piece):
    """A piece whose blocks are in memory, by unit.

    Args:
        number: as of `Piece`.
        units: the blocks of each unit.
        sizes: for each unit the bytes that were parsed.
    """

    def __init__(self, number: int, units: Sequence[Sequence[Block]], sizes: Sequence[int]) -> None:
        super().__init__(number)
        self._blocks, self._sizes = units, sizes
        self._unit_rows = [sum(map(len, blocks)) for blocks in units]

    def units(self) -> Iterator[Unit]:
        """The units, which need no parsing."""
        assert self._unit_rows is not None
        for blocks, rows, size in zip(self._blocks, self._unit_rows, self._sizes, strict=True):
            yield Unit(blocks.__iter__, self.rows, size).with_rows(rows)


class StreamPiece(Piece):
    """A piece whose units are made one after the other, such as a compressed file.

    Args:
        number: as of `Piece`.
        read: starts a pass over the units.
    """

    def __init__(self, number: int, read: Callable[[], Iterator[Unit]]) -> None:
        super().__init__(number)
        self._read = read

    def units(self) -> Iterator[Unit]:
        """The units, with their examples counted if an earlier pass counted them."""
        known = self._unit_rows or []
        for k, unit in enumerate(self._read()):
            yield unit.with_rows(known[k]) if k < len(known) else unit


class DealtPiece(Piece):
    """The units of another piece that belong to a part."""

    def __init__(self, whole: Piece, part: Part) -> None:
        self._first = part.first_from(whole.number)
        # The number of the unit k is as if the part's units were all the units there are.
        super().__init__((whole.number + self._first) // part.count)
        self._whole, self._part = whole, part

    def units(self) -> Iterator[Unit]:
        """The units of the part; the others are neither counted nor parsed."""
        for k, unit in enumerate(self._whole.units()):
            if k % self._part.count == self._first:
                yield unit

    def unit_rows(self) -> list[int]:
        """See `Piece`."""
        known = self._whole.known_unit_rows()
        if known is not None:
            return known[self._first :: self._part.count]
        return super().unit_rows()


class RowRangePieces:
    """The pieces of a source, cut to the examples start .. stop (None: to the end).

    The position of a piece is found when it is read: its earlier pieces are counted if they have
    not been read by then, and those after the end are not touched.
    """

    def __init__(self, pieces: Sequence[Piece], start: int, stop: int | None) -> None:
        self.start, self.stop = start, stop
        self._pieces = pieces
        self._firsts = [0]

    def first_row(self, index: int) -> int | None:
        """The number of the piece's first example in the source; None if it is beyond `stop`."""
        while len(self._firsts) <= index:
            last = self._firsts[-1]
            if self.stop is not None and last >= self.stop:
                return None
            self._firsts.append(last + self._pieces[len(self._firsts) - 1].rows())
        return self._firsts[index]

    def read_to_end(self, index: int, rows: int) -> None:
        """Notes that a piece has been read, or read beyond `stop`: it has at least `rows` rows."""
        if len(self._firsts) == index + 1:
            self._firsts.append(self._firsts[index] + rows)

    def pieces(self) -> list[Piece]:
        """The cut pieces."""
        return [_CutPiece(piece, i, self) for i, piece in enumerate(self._pieces)]


class _CutPiece(Piece):
    def __init__(self, whole: Piece, index: int, cut: RowRangePieces) -> None:
        super().__init__(whole.number)
        self._whole, self._index, self._cut = whole, index, cut

    def units(self) -> Iterator[Unit]:
        first = begin = self._cut.first_row(self._index)
        if first is None or begin is None:
            return
        start, stop = self._cut.start, self._cut.stop
        for unit in self._whole.units():
            if stop is not None and first >= stop:
                break
            # A unit before the range is yielded, without examples: units keep their numbers.
            skipped = max(start - first, 0)
            yield unit.slice(skipped, None if stop is None else stop - first)
            first += unit.rows()
        self._cut.read_to_end(self._index, first - begin)

    def unit_rows(self) -> list[int]:
        """See `Piece`; takes no pass if the rows of the whole piece's units are known."""
        known = self._whole.known_unit_rows()
        if self._unit_rows is None and known is not None:
            self._unit_rows = self._cut_rows(known)
        return super().unit_rows()

    def _cut_rows(self, whole: list[int]) -> list[int]:
        first = self._cut.first_row(self._index)
        start, stop = self._cut.start, self._cut.stop
        rows = []
        for count in [] if first is None else whole:
            assert first is not None
            if stop is not None and first >= stop:
                break
            last = first + count if stop is None else min(first + count, stop)
            rows.append(max(last - max(first, start), 0))
            first += count
        return rows


def in_range(blocks: Iterable[Block], start: int, stop: int | None) -> Iterator[Block]:
    """The examples start .. stop of `blocks`, which are not read further than needed."""
    row = 0
    for block in blocks:
        first, last = row, row + len(block)
        row = last
        if last > start:
            yield block.slice(max(start - first, 0), min(last, stop or last) - first)
        if stop is not None and last >= stop:
            return
