"""TF_CPP_MIN_LOG_LEVEL also for what TensorFlow's libraries log before they read it.

While its libraries are loaded, TensorFlow writes to stderr whatever the level is: that oneDNN is
on, and absl's warning that logging is not initialized yet.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_SEVERITIES = b"IWEF"
# `I0000 00:00:1795386210.2 9848 port.cc:153] ...`, `2026-11-22 22:25:01.8: I tensorflow/...`
_LOGGED = re.compile(rb"(?:([IWEF])\d{4} [\d:. ]+\S+:\d+\]|\d{4}-\d\d-\d\d [\d:.]+: ([IWEF]) )")
_ABSL_WARNING = b"WARNING: All log messages before absl::InitializeLog() is called"


def quiet() -> None:
    """Lets TensorFlow log only what ends the process, unless the user has set another level.

    Call it before TensorFlow is imported.
    """
    os.environ.setdefault(_LEVEL, "3")
    heed_level()


def heed_level() -> None:
    """Applies the level that is set to the import of TensorFlow, if that is still to come."""
    if "tensorflow" not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds tensorflow as it would have been found, once, and filters what its import logs."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                level = os.environ.get(_LEVEL, "")
                with _filtered_stderr(keeps(level)) if level else nullcontext():
                    execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def keeps(level: str) -> Callable[[bytes], bool]:
    """Whether a line of stderr is shown at that level, for lines in their order."""
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
    """Passes on the lines that are written to the process's stderr in the block and are kept.

    A child does it, so that the last words of a process that aborts are not lost.
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
        _pass_on(source, original, keep)
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


def _pass_on(source: int, target: int, keep: Callable[[bytes], bool]) -> None:
    try:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                if keep(line):
                    os.write(target, line)
    finally:
        os._exit(0)
