"""Standard output and standard error that cannot end a command.

A training that has taken hours must not be lost because the reader of a pipe has ended or the disk
of a log file is full. Text that cannot be written is discarded, and the command fails at its end.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_STREAMS = {1: "stdout", 2: "stderr"}


class _Stream:
    """A text stream whose first error is kept; what follows goes to the null device.

    Args:
        stream: the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Writes text."""
        with self._kept():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Writes what is buffered."""
        with self._kept():
            self._stream.flush()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            self.error = self.error or e
            with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
                _to_null_device(self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Streams:
    """The standard streams of a command."""

    def __init__(self, streams: dict[str, _Stream]) -> None:
        self._streams = streams

    def check(self) -> None:
        """Writes what is buffered.

        Raises:
            OSError: some of the output could not be written.
        """
        for name, stream in self._streams.items():
            stream.flush()
            if isinstance(stream.error, BrokenPipeError):
                raise stream.error
            if stream.error is not None:
                raise OSError(stream.error.errno, stream.error.strerror, f"<{name}>")


@contextlib.contextmanager
def tolerated() -> Iterator[Streams]:
    """Within its block, an error of a standard stream does not reach the code that writes.

    Closed descriptors are opened on the null device first, so that no file of the command gets
    the number of a standard stream.
    """
    before = {name: getattr(sys, name) for name in _STREAMS.values()}
    for descriptor in (0, *_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_null_device(descriptor)
    found = {}
    for descriptor, name in _STREAMS.items():
        stream = before[name]
        if stream is None:  # closed when Python started
            stream = io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), "utf-8")
        found[name] = _Stream(stream)
        setattr(sys, name, found[name])
    try:
        yield Streams(found)
    finally:
        for name, stream in before.items():
            found[name].flush()
            setattr(sys, name, stream)


def _to_null_device(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
