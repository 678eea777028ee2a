"""The console of the commands, without TensorFlow."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """For the standard output: lines are not broken where they do not meet a screen's edge."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)
