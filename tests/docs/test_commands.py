"""What the documents say to type is there: commands, options, modules, files, make's targets.

What the commands of a page do is in test_pages_run.py; Python blocks run in test_guides.py and
test_readme.py. The one program of the documents that cannot run here, the loop of a TPU host, is
read for its names.
"""

import ast
import functools
import importlib
import importlib.util
import re
import shlex
import textwrap

import pytest
import typer

from tests.docs.pages import PAGES, ROOT, blocks, words
from twml_ops.cli.app import app

IN_PROSE = (
    r"`((?:twml-ops|python -m twml_ops|python -m benchmarks|python examples/|make [a-z])[^`\n]*)`"
)
BLOCKS = [block for page in PAGES for block in blocks(page)]
# Programs that a reader has; of the package's own, everything is checked.
FOREIGN = ("docker", "export", "mpirun")


def commands():
    """Lines of shell blocks, and of `code` in prose."""
    for path in PAGES:
        found = [command for block in BLOCKS if block.page == path for command in block.commands]
        found += re.findall(IN_PROSE, path.read_text(encoding="utf-8"))
        for line in dict.fromkeys(found):
            yield pytest.param(line, id=f"{path.stem}: {line}")


@functools.cache
def command_line():
    """The commands, of which typer makes objects in 40 ms."""
    return typer.main.get_command(app)


def parse(arguments):
    """The options of a command line as typer reads it, without running anything."""
    group = command_line()
    name, command, rest = group.resolve_command(group.make_context("twml-ops", ["info"]), arguments)
    if name == "checkpoints":  # a group of commands
        name, command, rest = command.resolve_command(command.make_context(name, [*rest]), [*rest])
    if rest and rest[0] not in ("--help", "--help-all"):  # prose names commands alone
        return command.make_context(name, rest).params
    return {}


def targets():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split())


def extras():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.partition("[project.optional-dependencies]\n")[2].partition("\n[project.")[0]
    return set(re.findall(r"^([\w-]+) = \[", block, re.M))


def source_of(module):
    """The source of a module or a package, and of the benchmarks that it imports."""
    path = ROOT.joinpath(*module.split("."))
    if path.is_dir():
        return "".join(file.read_text(encoding="utf-8") for file in sorted(path.glob("*.py")))
    text = path.with_suffix(".py").read_text(encoding="utf-8")
    for package, names in re.findall(r"^from (benchmarks[\w.]*) import (.*)", text, re.M):
        modules = [package, *(f"{package}.{name.strip()}" for name in names.split(","))]
        files = [ROOT.joinpath(*m.split(".")).with_suffix(".py") for m in modules]
        text += "".join(f.read_text(encoding="utf-8") for f in files if f.exists())
    return text


def check_python(arguments):
    """A module or a script is there, and its source has the options, of argparse or of typer."""
    if arguments[0] == "-m":
        _, module, *options = arguments
        assert importlib.util.find_spec(module) is not None, module
        if module.startswith("twml_ops"):  # a command, or written in C++
            return
    else:
        script, *options = arguments
        if "/" not in script:  # a program of the reader
            return
        assert (ROOT / script).exists()
        module = script.removesuffix(".py").replace("/", ".")
    text = source_of(module)
    for option in [o.partition("=")[0] for o in options if o.startswith("--")]:
        parameter = option[2:].replace("-", "_")
        assert f'"{option}"' in text or re.search(rf"\b{parameter}: ", text), option


def check(line):
    """Everything that a line names is there."""
    program, *rest = words(line)
    if program == "twml-ops":
        if rest:
            known = [w.partition("|")[0] for w in rest]  # `fast|stock|scorer`: the first
            launched = parse(known).get("command", [])
            if launched[1:2] not in ([], ["..."]):
                check(shlex.join(["twml-ops"] * (launched[0] == "train") + launched))
    elif program == "make":
        assert next(w for w in rest if "=" not in w) in targets()
    elif program == "python":
        check_python(rest)
    elif program == "pytest":
        assert all((ROOT / w).exists() for w in rest if w.startswith("tests/"))
    elif program == "pip":
        own = [w for w in rest if re.match(r"\.|twml_ops", w) and "[" in w]
        assert {e for w in own for e in w[w.index("[") + 1 : -1].split(",")} <= extras()
    else:
        assert program in FOREIGN, f"unknown program {program}"


@pytest.mark.parametrize("line", list(commands()))
def test_what_the_documents_say_to_type_is_there(line):
    check(line)


def test_a_shell_block_has_nothing_but_commands_and_output():
    assert [f"{b.name}: {line}" for b in BLOCKS for line in b.strange] == []


def test_a_block_that_cannot_run_here_says_why():
    def runs(command):
        program, *rest = words(command)
        runs_alone = program == "twml-ops" and rest[0] not in ("launch", "serve", "tpu-check")
        return runs_alone or (program == "python" and rest[0].startswith("examples/"))

    untagged = [b for b in BLOCKS if b.reason is None and not all(map(runs, b.commands))]
    assert [b.name for b in untagged] == []
    assert len([b for b in BLOCKS if b.reason is None]) > len(BLOCKS) / 3


def test_no_command_of_a_page_writes_where_another_one_has_written():
    collisions = []
    for page in PAGES:
        written = set()
        for block in blocks(page):
            for command in block.commands:
                program, *rest = words(command)
                options = parse(rest) if program == "twml-ops" and rest else {}
                if options.get("command"):
                    options = parse(options["command"]) if options["command"][0] == "train" else {}
                out = options.get("out")
                if out in written and not options.get("overwrite"):
                    collisions.append(f"{block.name}: {out}")
                written.add(out)
                written.discard(None)
    assert "\n".join(collisions) == ""


EXAMPLE = """
    twml-ops info
    twml-ops train --data x \\
        --out y

    printed

<!-- not run: it has a reason -->

    $ make all
    printed

```bash
make more
rm x
```
"""


def test_a_block_is_found_with_its_commands_its_reason_and_what_is_neither():
    first, second, third = blocks(ROOT / "README.md", EXAMPLE)
    assert first.commands == ("twml-ops info", "twml-ops train --data x --out y")
    assert (first.strange, first.line, first.reason) == (("printed",), 2, None)
    assert (second.commands, second.strange) == (("make all",), ())
    assert second.reason == "it has a reason"
    assert (third.commands, third.strange, third.reason) == (("make more",), ("rm x",), None)


def test_there_are_commands_of_each_kind():
    lines = [p.values[0] for p in commands()]
    for start in ("twml-ops train", "twml-ops plan", "make ", "python -m benchmarks."):
        assert [line for line in lines if line.startswith(start)]


@pytest.mark.parametrize(
    "line",
    [
        "twml-ops train --data flights --out x --no-such-option",
        "twml-ops launch --ps 1 -- train --data flights --out x --no-such-option",
        "python -m benchmarks.click_log --no-such-option",
        "python examples/click_log.py x.csv --no-such-option",
        "python examples/no_such_file.py",
        "make no-such-target",
        "pip install 'twml_ops[no-such-extra]'",
    ],
)
def test_a_wrong_command_would_be_found(line):
    with pytest.raises(Exception):  # noqa: B017, PT011 (of any kind)
        check(line)


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
