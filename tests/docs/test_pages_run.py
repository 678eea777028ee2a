"""The shell blocks of a page, and the cells of the tutorial, run in order in one folder.

The files that they name have a few rows, and options at the end of a command make it small.
"""

import contextlib
import importlib
import json
import re
import subprocess
import sys

import pytest

from tests.docs import small_data
from tests.docs.pages import PAGES, ROOT, blocks, words
from twml_ops.cli import main

# Cheap pages, which run on every change.
QUICK = ("fields",)
SMALL = {
    "search": ["--warm-up", "1", "--epochs", "1"],
    "stability": ["--runs", "2", "--epochs", "1"],
    "tune": ["--trials", "2", "--max-epochs", "1"],
    "tune-input": ["--seconds", "0.05"],
}


def small(arguments):
    """The arguments with options behind them that make the command small."""
    if arguments[0] != "train":
        return [*arguments, *SMALL.get(arguments[0], [])]
    limits = ["--max-epochs", "1"] if "--epochs" not in arguments else ["--epochs", "1"]
    if "auto" in arguments:
        limits += ["--time-limit", "1"]
    return [*arguments, *limits]


def run(command):
    """Runs one line of a page; a failure is an exception."""
    typed = words(command)
    _, redirected, target = command.partition(" > ")
    if typed[0] == "twml-ops":
        with contextlib.ExitStack() as stack:
            if redirected:
                file = stack.enter_context(open(target.split()[0], "w", encoding="utf-8"))
                stack.enter_context(contextlib.redirect_stdout(file))
            main(small(typed[1:]))
        return
    few_rows = ["--rows", "400"] if "examples/click_log.py" in typed else []
    subprocess.run([sys.executable, *typed[1:], *few_rows], check=True)


def runnable():
    """The pages with blocks that are run."""
    for page in PAGES:
        if any(not block.reason for block in blocks(page)):
            marks = [] if page.stem in QUICK else [pytest.mark.slow]
            yield pytest.param(page, id=page.stem, marks=marks)


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    small_data.write_flights(folder)
    return folder


@pytest.mark.parametrize("page", list(runnable()))
def test_a_page_runs_in_order(page, request, tmp_path, monkeypatch):
    typed = [(b, c) for b in blocks(page) if not b.reason for c in b.commands]
    small_data.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    if any("flights" in words(command) for _, command in typed):
        monkeypatch.syspath_prepend(request.getfixturevalue("flights"))
        importlib.invalidate_caches()
    failed = []
    for block, command in typed:
        try:
            run(command)
        except (SystemExit, subprocess.CalledProcessError) as error:
            failed.append(f"{block.name}: {command}: {error}")
    assert not failed, "\n".join(failed)


def cells():
    """The code of the tutorial."""
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def test_the_tutorial_leads_from_a_csv_file_to_answers_of_a_server(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert sum("ROWS = 20_000" in cell for cell in cells()) == 1
    scope = {"run": run}
    for cell in cells():
        code = re.sub(r"^!(.*)$", lambda line: f"run({line[1]!r})", cell, flags=re.M)
        exec(code.replace("ROWS = 20_000", "ROWS = 1_000"), scope)
    printed = capsys.readouterr().out
    assert "user_id" in printed
    assert "importance" in printed
    first, lower = scope["predictions"]
    assert 0 < first[0] < 1
    assert first != lower


def test_the_tutorial_is_a_notebook_without_outputs():
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
