"""docs/commands.md has every command, with all of its options, and lines that use each of them.

That these lines are understood is tested in test_commands.py.
"""

import re
import shlex

import pytest
from typer.testing import CliRunner

from tools.command_pages import PAGE, commands, options, sections, table, with_tables
from twml_ops.cli.app import app

GUIDE = PAGE.read_text(encoding="utf-8")
SECTIONS, COMMANDS = sections(GUIDE), commands()


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
    """`python -m tools.command_pages` writes them."""
    assert table(COMMANDS[name]) in SECTIONS[name]
    assert len(re.findall(r"^\| `--", SECTIONS[name], re.M)) == len([*options(COMMANDS[name])])


def test_the_tables_are_written_where_they_are_and_nothing_else_changes():
    assert with_tables(GUIDE) == GUIDE
    old = re.sub(r"^\| `--(seed|out)`.*\n", "", GUIDE, flags=re.M)
    assert with_tables(old) == GUIDE
    with pytest.raises(ValueError, match="the section of evaluate has no table"):
        with_tables(GUIDE.replace(table(COMMANDS["evaluate"]), ""))


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_uses_every_option(name):
    lines = re.findall(rf"^    twml-ops {name}(?= |$)(.*)$", SECTIONS[name], re.M)
    assert lines
    used = {w.partition("=")[0] for line in lines for w in shlex.split(line, comments=True)}
    unused = [names for names, *_ in options(COMMANDS[name]) if not used & set(names)]
    assert not unused
