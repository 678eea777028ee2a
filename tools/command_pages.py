"""`python -m tools.command_pages`: writes the tables of options in docs/commands.md.

They are made of the options of the commands, which are written once, in `twml_ops/cli`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from twml_ops.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
_SECTION = re.compile(r"^## `twml-ops (.*?)`\n(.*?)(?=^## |\Z)", re.M | re.S)
_HEADING = "| option | default | meaning |\n|---|---|---|\n"
_ROWS = re.compile(re.escape(_HEADING) + r"(?:\|.*\n)*")
_EXPLAINED_ONCE = (["--debug"], ["--help-all"])


def commands() -> dict[str, Any]:
    """The commands by their words, such as "checkpoints list"."""
    return dict(_commands(typer.main.get_command(app), ()))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        yield " ".join(path), command
    for name, sub in subcommands.items():
        yield from _commands(sub, (*path, name))


def options(command: Any) -> Iterator[tuple[list[str], Any, str]]:
    """The names, the default and the help of each option."""
    for parameter in command.params:
        names = [n for n in (*parameter.opts, *parameter.secondary_opts) if n.startswith("--")]
        if names and names not in _EXPLAINED_ONCE:
            yield names, "required" if parameter.required else parameter.default, parameter.help


def sections(page: str) -> dict[str, str]:
    """The text about each command, by its words."""
    return dict(_SECTION.findall(page))


def table(command: Any) -> str:
    """The table of the options of a command; "" if it has none."""
    rows = "".join(_row(*option) for option in options(command))
    return _HEADING + rows if rows else ""


def _row(names: list[str], default: Any, text: str) -> str:
    default = default.value if isinstance(default, enum.Enum) else default
    if default is None or default is False:
        shown = ""
    elif default is True:
        shown = f"`{names[0]}`"
    else:
        shown = default if default == "required" else f"`{default}`"
    text = " ".join(text.split()).replace("|", r"\|")
    return f"| {', '.join(f'`{n}`' for n in names)} | {shown} | {text} |\n"


def with_tables(page: str) -> str:
    """The page with the tables of the present options, which stand where tables are.

    Raises:
        ValueError: a command has options, and its section has no table.
    """
    known = commands()

    def section(match: re.Match[str]) -> str:
        name, text = match.groups()
        made = table(known[name]) if name in known else ""
        if made and not _ROWS.search(text):
            raise ValueError(f"{PAGE.name}: the section of {name} has no table:\n{_HEADING}")
        return f"## `twml-ops {name}`\n" + _ROWS.sub(lambda _: made, text, count=1)

    return _SECTION.sub(section, page)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
