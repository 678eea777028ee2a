"""docs/commands.md has every command, with all of its options, and lines that use each of them.

That these lines are understood is tested in test_commands.py.
"""

import enum
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

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
        if names and names not in (["--debug"], ["--help-all"]):  # they are explained once
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


def help_of(name, option, monkeypatch):
    """The lines of the help of a command on a screen of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    found = CliRunner().invoke(app, [*name.split(), option], env={"COLUMNS": "100"})
    assert found.exit_code == 0, found.output
    return found.output.splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_fits_on_two_screens_and_all_options_are_one_option_away(name, monkeypatch):
    short = help_of(name, "--help", monkeypatch)
    assert len(short) <= 100
    names = {n for option in options(COMMANDS[name]) for n in option[0]}
    longest = short
    if any(p.name == "help_all" for p in COMMANDS[name].params):
        longest = help_of(name, "--help-all", monkeypatch)
        assert "--help-all" in " ".join(short)
        assert len(longest) > len(short)
        assert help_of(name, "--help", monkeypatch) == short  # whatever was asked before
    assert names <= set(re.findall(r"--[a-z][a-z-]*", "\n".join(longest)))


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
