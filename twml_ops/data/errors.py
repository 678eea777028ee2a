"""The exception and the warning of the readers. Their messages are one line."""

from __future__ import annotations

import errno
import re
import reprlib
import resource
from collections.abc import Sequence
from typing import Any

_FUNCTION = re.compile(r"\{\{function_node .*?\}\}")


class DataError(ValueError):
    """The data do not have the format, or the columns, that were asked for."""


class DataWarning(UserWarning):
    """A warning about what a reader has guessed, or found in the data."""


def one_line(error: Exception) -> str:
    """The message of `error`, without line breaks and TensorFlow's names of functions."""
    return " ".join(_FUNCTION.sub("", str(error)).split())


def quote(raw: bytes | str, limit: int = 40) -> str:
    """`raw` as it can be shown inside a one-line message, cut to `limit` characters."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return repr(text if len(text) <= limit else text[:limit] + "...")


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 80


def shown(value: Any) -> str:
    """A value of a file as it can be shown inside a message, cut.

    A YAML file of 400 bytes can hold a value whose text has gigabytes.
    """
    return _SHORT.repr(value)


def cannot_read(path: str, error: Exception, otherwise: str = "cannot be read") -> DataError:
    """The error of a file that cannot be read; `otherwise` says what is probably wrong with it."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        otherwise = f"the process has too many open files, at most {limit} (`ulimit -n`)"
    return DataError(f"{path}: {otherwise}: {one_line(error)}")


def some(items: Sequence[str], limit: int = 10) -> str:
    """The first items with commas, and how many more there are."""
    more = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {more} more" if more > 0 else "")


def listed(names: Sequence[str], limit: int = 20) -> str:
    """The first names of columns for a one-line message, and how many more there are."""
    return some([n if _is_plain(n) else quote(n) for n in names], limit)


def _is_plain(name: str) -> bool:
    return name.isprintable() and name == name.strip() and 0 < len(name) <= 40
