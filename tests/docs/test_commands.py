"""What the documents say to type is there: commands with their options, modules, make's targets.

What the commands do is tests/cli's; Python blocks run in test_guides.py and test_readme.py. The one
program of the documents that cannot run here, the loop of a TPU host, is read for its names.
"""

import ast
import functools
import importlib
import importlib.util
import re
import shlex
import textwrap
from pathlib import Path

import pytest
import typer

from twml_ops.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = r"(?:twml-ops|python -m twml_ops|python -m benchmarks|python examples/|make [a-z])"


def commands():
    """Lines of indented blocks, and of `code`, that run something of this repository."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        found = re.findall(rf"^    (?:\$ )?({PROGRAM}.*)$", text, re.M)
        found += re.findall(rf"`({PROGRAM}[^`\n]*)`", text)
        for line in dict.fromkeys(found):
            yield pytest.param(line, id=f"{path.stem}: {line}")


@functools.cache
def command_line():
    """The commands, of which typer makes objects in 40 ms."""
    return typer.main.get_command(app)


def parse(arguments):
    """The command line as typer reads it, without running anything."""
    group = command_line()
    name, command, rest = group.resolve_command(group.make_context("twml-ops", ["info"]), arguments)
    if rest and rest[0] not in ("--help", "--help-all"):  # prose names commands alone
        command.make_context(name, rest)


def targets():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split())


@pytest.mark.parametrize("line", list(commands()))
def test_what_the_documents_say_to_type_is_there(line):
    words = shlex.split(line, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    if words[0] == "twml-ops":
        if words[1:]:
            known = [w.partition("|")[0] for w in words[1:]]  # `fast|stock|scorer`: the first
            parse(known)
    elif words[0] == "make":
        assert next(w for w in words[1:] if "=" not in w) in targets()
    elif words[1] == "-m":
        assert importlib.util.find_spec(words[2]) is not None
    else:
        assert (ROOT / words[1]).exists()


def test_there_are_commands_of_each_kind():
    lines = [p.values[0] for p in commands()]
    for start in ("twml-ops train", "twml-ops plan", "make ", "python -m benchmarks."):
        assert [line for line in lines if line.startswith(start)]


def test_a_wrong_option_would_be_found():
    with pytest.raises(Exception, match="No such option"):
        parse(["train", "--data", "flights", "--out", "x", "--no-such-option"])


def test_the_loop_of_a_tpu_host_uses_what_is_there():
    text = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    import tensorflow as tf\n(?:    .*\n|\n)*", text, re.M)
    tree = ast.parse(textwrap.dedent(block))
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    ours = {(m, a) for m, a in used if m in ("data", "tpu")}
    assert len(ours) > 5
    for module, attribute in ours:
        assert hasattr(importlib.import_module(f"twml_ops.{module}"), attribute), attribute
