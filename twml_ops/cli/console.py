"""The consoles of the commands, and JSON. It does not import TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from twml_ops._terminal import is_terminal
from twml_ops.training.run_folder import to_json


def make_console() -> Console:
    """A console on the standard output; 120 columns wide where that is not a terminal."""
    terminal = is_terminal(sys.stdout)
    return Console(highlight=False, width=None if terminal else 120, force_terminal=terminal)


def make_error_console() -> Console:
    """A console on the standard error, for progress beside output that programs may read."""
    return Console(stderr=True, force_terminal=is_terminal(sys.stderr))


def print_warning(console: Console, text: str) -> None:
    """Prints a line that begins with "warning"."""
    console.print(f"[bold yellow]warning[/] {escape(text)}", soft_wrap=True)


def print_pairs(console: Console, pairs: Mapping[str, str]) -> None:
    """Prints a name and its value on each line."""
    for name, value in pairs.items():
        console.print(f"[bold]{name:<20}[/] {escape(value)}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints `value` on the standard output; see `to_json`."""
    print(to_json(value))
