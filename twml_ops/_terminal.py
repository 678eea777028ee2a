"""Whether output goes to a person at a terminal or to a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

# What mpirun, or the starter of another MPI, sets for each rank. It gives ranks a terminal of its
# own, and what it writes itself may go to a file.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_PLAIN_TYPER = "_TYPER_FORCE_DISABLE_TERMINAL"


def is_terminal(stream: TextIO) -> bool:
    """Whether control sequences may be written to a stream: to a terminal, but by no rank of MPI.

    Args:
        stream: the standard output or the standard error.
    """
    return stream.isatty() and not any(name in os.environ for name in _RANK_VARIABLES)


@contextlib.contextmanager
def plain_help() -> Iterator[None]:
    """In its block, Typer writes control sequences to a terminal only."""
    if _PLAIN_TYPER in os.environ or (is_terminal(sys.stdout) and is_terminal(sys.stderr)):
        yield
        return
    os.environ[_PLAIN_TYPER] = "1"
    try:
        yield
    finally:
        os.environ.pop(_PLAIN_TYPER, None)
