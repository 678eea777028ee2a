"""Whether output goes to a person at a terminal or to a file."""

from __future__ import annotations

import os
from typing import TextIO

# What mpirun, or the starter of another MPI, sets for each rank. It gives ranks a terminal of its
# own, and what it writes itself may go to a file.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def is_terminal(stream: TextIO) -> bool:
    """Whether control sequences may be written to a stream: to a terminal, but by no rank of MPI.

    Args:
        stream: the standard output or the standard error.
    """
    return stream.isatty() and not any(name in os.environ for name in _RANK_VARIABLES)
