"""Text files of any size as chunks of whole lines, plain or .gz."""

from __future__ import annotations

import queue
import threading
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from twml_ops.data.block import Block
from twml_ops.data.errors import DataError, one_line
from twml_ops.data.source import ALL, Part, Source, in_range

try:  # decompresses about three times as fast as zlib
    from isal import igzip, isal_zlib

    _READ_ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, isal_zlib.error)
except ImportError:
    igzip = None
    _READ_ERRORS = (OSError,)

CHUNK_BYTES = 1 << 22
_MAX_LINE_BYTES = 1 << 26
_CHUNKS_AHEAD = 2


class Chunk(NamedTuple):
    """Whole lines of a file.

    Attributes:
        text: the bytes, with line ends (the last line of the file may lack one).
        path: the file, for messages.
        first_line: 1-based number of the first of these lines.
    """

    text: bytes
    path: str
    first_line: int

    def where(self, line: int) -> str:
        """File and number of the 0-based `line` of the chunk, for messages."""
        return f"{self.path}: line {self.first_line + line}"


def existing_file(path: str) -> Path:
    """`path`, if a file with something in it is there.

    Raises:
        FileNotFoundError: nothing is there.
        DataError: it is a folder, or an empty file.
    """
    file = Path(path).expanduser()
    if not file.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not file.is_file():
        raise DataError(f"{path}: expected a file, got a folder or device")
    if file.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    return file


def read_chunks(path: str) -> Iterator[Chunk]:
    """The lines of `path` in order, about `CHUNK_BYTES` of them at a time.

    Raises:
        FileNotFoundError: no such file.
        DataError: the file is empty, cannot be read, or is a damaged or truncated .gz.
    """
    file = existing_file(path)
    line, rest = 1, b""
    compressed = file.suffix == ".gz"
    try:
        with _open(file, compressed) as stream:
            while data := stream.read(CHUNK_BYTES):
                cut = data.rfind(b"\n") + 1
                if not cut:
                    rest += data
                    if len(rest) > _MAX_LINE_BYTES:
                        raise DataError(f"{path}: line {line} is longer than 64 MiB")
                    continue
                chunk = Chunk(rest + data[:cut], path, line)
                line, rest = line + chunk.text.count(b"\n"), data[cut:]
                yield chunk
    except _READ_ERRORS as e:
        what = "damaged or truncated .gz" if compressed else "cannot be read"
        raise DataError(f"{path}: {what}, after line {line - 1}: {one_line(e)}") from e
    if rest:
        yield Chunk(rest, path, line)
    elif line == 1:
        raise DataError(f"{path}: the file holds no lines")


def _open(file: Path, compressed: bool) -> Any:
    """The bytes of a file, decompressed by isal if it is installed, else by Arrow."""
    if compressed and igzip is not None:
        return igzip.open(file, "rb")
    return pa.input_stream(str(file), compression="gzip" if compressed else None)


def read_ahead(path: str) -> Iterator[Chunk]:
    """`read_chunks`, decompressing the next chunks in a thread while one is parsed.

    Raises:
        FileNotFoundError: no such file.
        DataError: as of `read_chunks`.
    """
    chunks: queue.Queue[Chunk | Exception | None] = queue.Queue(_CHUNKS_AHEAD)
    abandoned = threading.Event()

    def put(item: Chunk | Exception | None) -> bool:
        """Whether somebody still wants what is read."""
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
    """A source whose examples are lines of one text file."""

    def __init__(self, name: str, path: str) -> None:
        """Nothing is read yet.

        Args:
            name: the source as the user wrote it.
            path: of the file; ends in .gz if it is compressed.

        Raises:
            FileNotFoundError: no such file.
            DataError: the file is empty.
        """
        super().__init__(name)
        existing_file(path)
        self._path = path

    @abstractmethod
    def _count_rows(self, chunk: Chunk) -> int:
        """How many examples `_parse` would return, for less work."""

    @abstractmethod
    def _parse(self, chunk: Chunk) -> Block:
        """The examples of `chunk`."""

    def _count(self) -> int:
        return sum(map(self._count_rows, read_chunks(self._path)))

    def _read(self, start: int, stop: int | None, part: Part = ALL) -> Iterator[Block]:
        row = 0
        for unit, chunk in enumerate(read_ahead(self._path)):
            if row < start or not part.has(unit):  # cheap to skip: counted, not parsed
                rows = self._count_rows(chunk)
                if row + rows <= start or not part.has(unit):
                    row += rows
                    continue
            if stop is not None and row >= stop:
                return
            block = self._parse(chunk)
            yield from in_range([block], max(start - row, 0), None if stop is None else stop - row)
            row += len(block)
            if stop is not None and row >= stop:
                return
