"""Python child processes that run modules of this very package."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent

# `python -m` puts the current folder before everything else, and `-P`, which would prevent that,
# is of Python 3.11. A folder of the same name there, as in a checkout, must not be imported.
_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from twml_ops import _startup_log; _startup_log.heed_level(); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command(module: str, *arguments: str) -> list[str]:
    """As `python -m module arguments`, but this package comes first, whatever the folder is."""
    return [sys.executable, "-c", _RUN, str(_ROOT), module, *arguments]
