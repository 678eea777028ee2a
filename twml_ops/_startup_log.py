"""Applies TF_CPP_MIN_LOG_LEVEL to everything that TensorFlow logs while it is imported.

TensorFlow's libraries write to stderr before they read the level: a message about oneDNN, and a
warning of Abseil that logging is not initialized.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from twml_ops import _tensorflow_import

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_SEVERITIES = b"IWEF"
# `I0000 00:00:1795386210.2 9848 port.cc:153] ...`, `2026-11-22 22:25:01.8: I tensorflow/...`
_LOGGED = re.compile(rb"(?:([IWEF])\d{4} [\d:. ]+\S+:\d+\]|\d{4}-\d\d-\d\d [\d:.]+: ([IWEF]) )")
_ABSL_WARNING = b"WARNING: All log messages before absl::InitializeLog() is called"


def quiet() -> None:
    """Hides all log messages of TensorFlow but fatal ones, unless the user has set a level.

    Call it before TensorFlow is imported.
    """
    os.environ.setdefault(_LEVEL, "3")
    apply_level()


def apply_level() -> None:
    """Applies the current level to the import of TensorFlow, if it has not been imported yet."""
    _tensorflow_import.import_within(_at_current_level)


@contextmanager
def _at_current_level() -> Iterator[None]:
    level = os.environ.get(_LEVEL, "")
    with _filtered_stderr(line_filter(level)) if level else nullcontext():
        yield


def line_filter(level: str) -> Callable[[bytes], bool]:
    """A function that decides which lines of stderr are shown at a log level.

    Args:
        level: Value of TF_CPP_MIN_LOG_LEVEL.

    Returns:
        A function from a line to whether it is shown. Call it with the lines in their order.
    """
    hidden = _SEVERITIES[: max(0, int(level))] if level.isdecimal() else b""
    shown = True

    def keep(line: bytes) -> bool:
        nonlocal shown
        if found := _LOGGED.match(line):
            shown = (found[1] or found[2]) not in hidden
        elif line.startswith(_ABSL_WARNING):
            return b"W" not in hidden
        elif line.startswith(b"To enable the following instructions"):
            return shown  # the second line of a message
        else:
            return True
        return shown

    return keep


@contextmanager
def _filtered_stderr(keep: Callable[[bytes], bool]) -> Iterator[None]:
    """Filters what the process writes to stderr within the block.

    A child process filters the lines, so that the lines of a process that aborts are not lost.
    """
    try:
        original = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    _flush()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sink)
        _forward_lines(source, original, keep)
    os.close(source)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        _flush()
        os.dup2(original, 2)
        os.close(original)
        os.waitpid(child, 0)


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _forward_lines(source: int, target: int, keep: Callable[[bytes], bool]) -> None:
    try:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                if keep(line):
                    os.write(target, line)
    finally:
        os._exit(0)
