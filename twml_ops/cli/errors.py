"""Makes each failure one line on stderr and a non-zero exit status; `--debug` shows more."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from twml_ops.training.errors import RunInterrupted, UserError

_PREFIX = re.compile(r"^(\{\{function_node .*?\}\}\s*)?(\w+(Error|Exception|Invalid): )?")
_SUFFIX = re.compile(r"\s*(\[\[\{\{node|\[Op:|\[name: ).*$")

_NOISE = re.compile(
    r"^($|Traceback|File \"|Graph execution error|Detected at node|Node: |\s|\d+ root error|"
    r"\(\d+\) |Additional GRPC error information )"
)
# Of several root errors. A step that is cancelled is a consequence of another one.
_ROOT = re.compile(r"^\s*\(\d+\) (?!CANCELLED)\w+:\s+")
USAGE = 2
FAILED = 1
INTERRUPTED = 130


class _Debug:
    """Holds `--debug`, which is allowed before and after the command."""

    on = False


def set_debug(value: bool) -> None:
    """Typer callback of `--debug`."""
    _Debug.on = _Debug.on or value


@contextlib.contextmanager
def data_warnings() -> Iterator[None]:
    """In its block, warnings of readers are printed as one line each, like errors."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, UserWarning) and category.__name__ == "DataWarning":
            print(f"twml-ops: warning: {message}", file=sys.stderr)
        else:
            others(message, category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = others


def reset_debug() -> None:
    """Forgets the `--debug` of a command that ran earlier in this process."""
    _Debug.on = False


def report(error: BaseException) -> NoReturn:
    """Prints the line of an error and exits.

    Args:
        error: the error.

    Raises:
        SystemExit: always; with status 2 for wrong usage, 130 for an interrupt, and 1 otherwise.
    """
    if _Debug.on:
        traceback.print_exception(error)
    if _is_interrupt(error):
        code, line = INTERRUPTED, "interrupted"
    elif isinstance(error, RunInterrupted):
        code, line = INTERRUPTED, str(error)
    elif isinstance(error, BrokenPipeError):
        raise SystemExit(FAILED)  # the reader of a pipe has ended: no message, as usual
    else:
        usage = hasattr(error, "format_message")  # errors of Typer, which may use a vendored Click
        code, line = USAGE if usage else FAILED, message_of(error)
    if sys.stderr is not None:  # it is closed
        with contextlib.suppress(OSError):
            print(f"twml-ops: {line}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or one that Python made of it in an import."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
            return True
        error = error.__cause__
    return False


def message_of(error: BaseException) -> str:
    """The message of an error on one line, without a stack trace and names of ops."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if hasattr(error, "format_message"):
        return " ".join(error.format_message().split())
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    message = _cause(str(getattr(error, "message", None) or error))
    if isinstance(error, (ValueError, OSError, EOFError, ImportError)) or _is_tensorflow(error):
        return message or type(error).__name__
    return (
        f"internal error, please report it (--debug shows more): {type(error).__name__}: {message}"
    )


def _is_tensorflow(error: BaseException) -> bool:
    return any(c.__module__.startswith("tensorflow.") for c in type(error).__mro__)


def _cause(message: str) -> str:
    """The line of a message that names the cause, which TensorFlow prints below a stack trace."""
    _, node, below = message.rpartition("\nNode: ")
    lines = (below.split("\n", 1)[1] if node and "\n" in below else message).splitlines()
    lines = [_SUFFIX.sub("", _PREFIX.sub("", _ROOT.sub("", line))) for line in lines]
    return next((" ".join(li.split()) for li in lines if not _NOISE.match(li)), message.strip())
