"""Child processes that run modules of this package."""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

EXIT_LOST = 75
"""Exit status of a process that has lost contact with others and has to be restarted.

The value is `EX_TEMPFAIL` of sysexits.h, a temporary failure.
"""

_PR_SET_PDEATHSIG = 1

_ROOT = Path(__file__).resolve().parent.parent

# `python -m` puts the current folder first on the path, where a checkout may have a folder of the
# same name. The option `-P`, which would prevent that, is new in Python 3.11.
_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from twml_ops import _startup_log; _startup_log.apply_level(); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command(module: str, *arguments: str) -> list[str]:
    """The command line of `python -m module arguments` that imports this package in any folder."""
    return [sys.executable, "-c", _RUN, str(_ROOT), module, *arguments]


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Lets Linux send this process a signal when its parent ends. Other systems do nothing.

    Args:
        number: Of the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
