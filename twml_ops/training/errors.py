"""Errors of a training that its user can correct, and the one line that says what is wrong."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^(\{\{function_node .*?\}\}\s*)?(\w+(Error|Exception|Invalid): )?")


_SUFFIX = re.compile(r"\s*(\[\[\{\{node|\[Op:|\[name: ).*$")


_NOISE = re.compile(
    r"^($|Traceback|File \"|Graph execution error|Detected at node|Node: |\s|\d+ root error|"
    r"\(\d+\) )"
)


class UserError(Exception):
    """An error that the user can correct. Its message is the line that is printed."""


class RunInterrupted(UserError):
    """A signal has ended a run that can be continued. Its message says how."""


def one_line(error: BaseException) -> str:
    """The message of an error without stack, op names or line breaks."""
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
    """The line of a message that names the cause. TensorFlow prints it below a stack."""
    _, node, below = message.rpartition("\nNode: ")
    lines = (below.split("\n", 1)[1] if node and "\n" in below else message).splitlines()
    lines = [_SUFFIX.sub("", _PREFIX.sub("", re.sub(r"^\(\d+\) \w+:\s+", "", li))) for li in lines]
    return next((" ".join(li.split()) for li in lines if not _NOISE.match(li)), message.strip())
