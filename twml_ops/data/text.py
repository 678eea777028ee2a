"""Text files of any size as chunks of whole lines, plain or .gz."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from twml_ops.data.block import Block
from twml_ops.data.errors import DataError, one_line
from twml_ops.data.files import File, file_at
from twml_ops.data.source import Source
from twml_ops.data.units import Piece, SingleUnit, StreamPiece, Unit, check_rows

try:  # decompresses about three times as fast as zlib
    from isal import igzip, isal_zlib

    _READ_ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, isal_zlib.error)
except ImportError:
    igzip = None
    _READ_ERRORS = (OSError,)

CHUNK_BYTES = 1 << 22
MAX_LINE_BYTES = 1 << 26
_LINE_BYTES = 1 << 16
_CHUNKS_AHEAD = 2


class Chunk(NamedTuple):
    """Whole lines of a file.

    Attributes:
        text: the bytes, with line ends (the last line of the file may lack one).
        path: the file, for messages.
        first_line: 1-based number of the first of these lines, after those before `offset`.
        offset: bytes of the file whose lines were not counted.
    """

    text: bytes
    path: str
    first_line: int
    offset: int = 0

    def where(self, line: int) -> str:
        """File and number of the 0-based `line` of the chunk, for messages."""
        before = _lines_before(self.path, self.offset)
        return f"{self.path}: line {before + self.first_line + line}"

    def count_lines(self) -> int:
        """The number of lines."""
        return line_breaks(self.text) + (self.text[-1:] not in (b"\n", b""))


def _lines_before(path: str, offset: int) -> int:
    """The line breaks in the first `offset` bytes of a plain file."""
    count = 0
    with file_at(path).reading() as stream:
        while data := stream.read(min(offset, CHUNK_BYTES)):
            offset -= len(data)
            count += line_breaks(data)
    return count


def line_breaks(text: bytes) -> int:
    """The number of line breaks, in a third of the time of `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")))


def existing_file(path: str | File) -> File:
    """The file at `path`, which must not be empty.

    Raises:
        FileNotFoundError: nothing is there.
        DataError: it is a folder, an empty file, or in a store that cannot be read.
    """
    file = path if isinstance(path, File) else file_at(path)
    if file.size == 0:
        raise DataError(f"{path}: the file is empty")
    return file


def read_chunks(path: str | File) -> Iterator[Chunk]:
    """The lines of a file in order, about `CHUNK_BYTES` of them at a time.

    Raises:
        FileNotFoundError: no such file.
        DataError: the file is empty, has changed, cannot be read, or is a damaged or truncated .gz.
    """
    file = existing_file(path)
    line, rest = 1, b""
    compressed = is_compressed(file)
    try:
        with file.reading() as stream:
            text = _decompressed(stream, file) if compressed else stream
            while data := text.read(CHUNK_BYTES):
                file.check()  # before anybody parses what is perhaps of another file
                cut = data.rfind(b"\n") + 1
                if not cut:
                    rest += data
                    if len(rest) > MAX_LINE_BYTES:
                        raise DataError(f"{path}: line {line} is longer than 64 MiB")
                    continue
                chunk = Chunk(rest + data[:cut], file.path, line)
                line, rest = line + line_breaks(chunk.text), data[cut:]
                yield chunk
    except FileNotFoundError:
        raise
    except _READ_ERRORS as e:
        what = "damaged or truncated .gz" if compressed else "cannot be read"
        raise DataError(f"{path}: {what}, after line {line - 1}: {one_line(e)}") from e
    if rest:
        yield Chunk(rest, file.path, line)
    elif line == 1:
        raise DataError(f"{path}: the file holds no lines")


def is_compressed(file: File) -> bool:
    """Whether the name of a file ends in .gz."""
    return file.path.endswith(".gz")


def decompressed_size(file: File) -> int:
    """The number of bytes in a .gz.

    Raises:
        DataError: it is damaged or truncated.
    """
    size = 0
    try:
        with file.reading() as stream:
            text = _decompressed(stream, file)
            while data := text.read(CHUNK_BYTES):
                size += len(data)
    except _READ_ERRORS as e:
        raise DataError(f"{file}: damaged or truncated .gz: {one_line(e)}") from e
    return size


def _decompressed(stream: pa.NativeFile, file: File) -> Any:
    """The bytes of a .gz, decompressed by isal if it is installed, else by Arrow."""
    if file.is_remote:  # each read is a request
        stream = pa.BufferedInputStream(stream, CHUNK_BYTES)
    return (
        igzip.open(stream, "rb") if igzip is not None else pa.CompressedInputStream(stream, "gzip")
    )


def read_range(path: str | File, start: int, stop: int) -> Chunk:
    """The lines of a plain file that begin at the bytes start .. stop.

    Raises:
        FileNotFoundError: no such file.
        DataError: the file is empty, has changed, cannot be read, or has a line of over 64 MiB.
    """
    file = existing_file(path)
    before = int(start > 0)  # a line begins at `start` if the byte before ends one
    begin = start
    size = stop - start + before
    try:
        with file.reading() as stream:
            stream.seek(start - before)
            # The end of the last line comes with the same request to a store.
            data = _read_fully(stream, size + _LINE_BYTES * file.is_remote)
            parts, ahead = [data[:size]], data[size:]
            if before:
                line_end = parts[0].find(b"\n")
                parts[0] = parts[0][line_end + 1 :] if line_end >= 0 else b""
                begin = start + line_end
            size = len(parts[0])
            while parts[-1] and not parts[-1].endswith(b"\n"):
                more, ahead = ahead or stream.read(_LINE_BYTES), b""
                line_end = more.find(b"\n")
                parts.append(more if line_end < 0 else more[: line_end + 1])
                if sum(map(len, parts)) - size > MAX_LINE_BYTES:
                    where = Chunk(b"", file.path, 1, begin).where(parts[0].count(b"\n"))
                    raise DataError(f"{where} is longer than 64 MiB")
    except FileNotFoundError:
        raise
    except OSError as e:
        raise DataError(f"{path}: cannot be read, from byte {start}: {one_line(e)}") from e
    return Chunk(b"".join(parts), file.path, 1, begin)


def _read_fully(stream: pa.NativeFile, size: int) -> bytes:
    """`size` bytes, or less at the end of the file."""
    data: bytes = stream.read(size)
    while len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data


class HasText(Protocol):
    """The text from which a unit is parsed; a unit without text holds no examples."""

    @property
    def text(self) -> bytes:
        """The bytes that are parsed."""


T = TypeVar("T", bound=HasText)


class TextFile(ABC, Generic[T]):
    """A text file whose parts can be parsed independently of each other.

    Args:
        path: the file, or its path; ends in .gz if it is compressed.

    Raises:
        FileNotFoundError: no such file.
        DataError: the file is empty, or a folder.
    """

    def __init__(self, path: str | File) -> None:
        self.file = existing_file(path)
        self.path = self.file.path
        self.step = CHUNK_BYTES
        self.compressed = is_compressed(self.file)

    @abstractmethod
    def in_order(self) -> Iterator[T]:
        """The parts of the file in order, of about `CHUNK_BYTES`."""

    @abstractmethod
    def part(self, number: int) -> T:
        """The rows of a plain file that begin in the bytes number · step .. (number + 1) · step."""

    def pieces(
        self, number: int, parse: Callable[[T], Block], count: Callable[[T], int]
    ) -> list[Piece]:
        """The pieces of the file: parts of a plain one, and a .gz as a whole.

        Args:
            number: the number of the first piece.
            parse: the examples of a part.
            count: how many examples `parse` would return, for less work.
        """

        def unit_of(read: Callable[[], T], size: int, place: str) -> Unit:
            def blocks() -> Iterator[Block]:
                part = read()
                if part.text:
                    block = parse(part)
                    check_rows(where, count(part), len(block))
                    yield block

            where = f"{self.path}: {place}"
            return Unit(blocks, lambda: count(read()), size, where)

        if self.compressed:

            def units() -> Iterator[Unit]:
                for k, part in enumerate(self.in_order()):
                    yield unit_of(lambda part=part: part, len(part.text), f"part {k}")  # type: ignore[misc]

            return [StreamPiece(number, units)]

        end = existing_file(self.file).size
        return [
            SingleUnit(
                number + k,
                unit_of(
                    partial(self.part, k), min(self.step, end - start), f"from byte {start} on"
                ),
            )
            for k, start in enumerate(range(0, end, self.step))
        ]


class LineFile(TextFile[Chunk]):
    """A text file in which every line can be parsed by itself."""

    def in_order(self) -> Iterator[Chunk]:
        """See `TextFile`."""
        return read_ahead(self.file)

    def part(self, number: int) -> Chunk:
        """See `TextFile`."""
        return read_range(self.file, number * self.step, (number + 1) * self.step)


def read_ahead(path: str | File) -> Iterator[Chunk]:
    """`read_chunks`, decompressing the next chunks in a thread while one is parsed.

    Raises:
        FileNotFoundError: no such file.
        DataError: as of `read_chunks`.
    """
    chunks: queue.Queue[Chunk | Exception | None] = queue.Queue(_CHUNKS_AHEAD)
    abandoned = threading.Event()

    def put(item: Chunk | Exception | None) -> bool:
        """Passes on what was read; False if the consumer has stopped."""
        while not abandoned.is_set():
            try:
                chunks.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for chunk in read_chunks(path):
                if not put(chunk):
                    return
            put(None)
        except Exception as e:
            put(e)

    thread = threading.Thread(target=read, name="twml_ops reader", daemon=True)
    thread.start()
    try:
        while (item := chunks.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        abandoned.set()
        thread.join()


class TextSource(Source):
    """A source whose examples are lines of one text file.

    Attributes:
        path: the path of the file.
    """

    def __init__(self, name: str, path: str) -> None:
        """Nothing is read yet.

        Args:
            name: the source as the user wrote it.
            path: the path of the file; ends in .gz if it is compressed.

        Raises:
            FileNotFoundError: no such file.
            DataError: the file is empty.
        """
        super().__init__(name)
        self._file = existing_file(path)
        self.path = path

    @abstractmethod
    def _count_rows(self, chunk: Chunk) -> int:
        """The number of examples that `_parse` would return, for less work."""

    @abstractmethod
    def _parse(self, chunk: Chunk) -> Block:
        """The examples of `chunk`."""

    def _make_pieces(self) -> Sequence[Piece]:
        return LineFile(self._file).pieces(0, self._parse, self._count_rows)
