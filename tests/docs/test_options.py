"""docs/commands.md has every command, with all of its options, and lines that use each of them.

That these lines are understood is tested in test_commands.py.
"""

import enum
import re
import shlex
from pathlib import Path

import pytest
import typer

from twml_ops.cli.app import app

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `twml-ops (.*?)`\n(.*?)(?=^## |\Z)", GUIDE, re.M | re.S))


def commands(command, path=()):
    """The words of each command, and the command."""
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        yield " ".join(path), command
    for name, sub in subcommands.items():
        yield from commands(sub, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def options(command):
    """The names, the default and the help of each option."""
    for parameter in command.params:
        names = [n for n in (*parameter.opts, *parameter.secondary_opts) if n.startswith("--")]
        if names and names != ["--debug"]:  # it is explained once
            yield names, "required" if parameter.required else parameter.default, parameter.help


def row(names, default, text):
    """The line of the guide about an option."""
    default = default.value if isinstance(default, enum.Enum) else default
    if default is None or default is False:
        shown = ""
    elif default is True:
        shown = f"`{names[0]}`"
    else:
        shown = default if default == "required" else f"`{default}`"
    text = " ".join(text.split()).replace("|", r"\|")
    return f"| {', '.join(f'`{n}`' for n in names)} | {shown} | {text} |"


def test_the_guide_has_every_command_and_no_other():
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_are_those_of_the_help(name):
    rows = [row(*option) for option in options(COMMANDS[name])]
    assert re.findall(r"^\| `--.*$", SECTIONS[name], re.M) == rows


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_uses_every_option(name):
    lines = re.findall(rf"^    twml-ops {name}(?= |$)(.*)$", SECTIONS[name], re.M)
    assert lines
    used = {w.partition("=")[0] for line in lines for w in shlex.split(line, comments=True)}
    unused = [names for names, *_ in options(COMMANDS[name]) if not used & set(names)]
    assert not unused
