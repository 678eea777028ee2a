"""The applications of docs/peers.md: how many lines peers change, and what their ranks learn."""

import ast
import difflib
import importlib.util
import re
import sys

import pytest

from tests.peers.jobs import ROOT, TIMEOUT, needs_mpi
from tests.trained_runs import write_criteo, write_libsvm
from twml_ops.peers.launch import run_job

pytestmark = pytest.mark.one_tf
EXAMPLES = ROOT / "examples"
NAMES = ("svm", "factorization", "clicks")
LARGEST_SHARE = 0.15


def code_lines(path):
    """The lines of a program without empty ones and docstrings."""
    text = path.read_text()
    lines = dict(enumerate(text.splitlines(), 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node):
            for number in range(node.body[0].lineno, node.body[0].end_lineno + 1):
                del lines[number]
    return [line for line in lines.values() if line.strip()]


def changed_share(plain, changed):
    """Lines that are inserted, deleted or replaced, as a share of the plain program's."""
    matcher = difflib.SequenceMatcher(None, plain, changed, autojunk=False)
    edits = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    return sum(max(a_end - a, b_end - b) for _, a, a_end, b, b_end in edits) / len(plain)


@pytest.mark.parametrize("name", NAMES)
def test_peers_change_few_lines_of_an_application(name):
    plain, changed = (code_lines(EXAMPLES / f"{p}{name}.py") for p in ("", "peers_"))
    share = changed_share(plain, changed)
    assert 0 < share <= LARGEST_SHARE
    stated = re.search(rf"`{name}\.py`.*?(\d+) %", (ROOT / "docs" / "peers.md").read_text())
    assert int(stated[1]) == round(100 * share)


def test_the_share_counts_inserted_deleted_and_replaced_lines():
    assert changed_share(["a", "b", "c", "d"], ["a", "x", "c", "d", "e"]) == 0.5
    assert changed_share(["a", "b"], ["a"]) == 0.5


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    criteo = write_criteo(folder / "c.tsv", 600)
    return {
        "svm": ["--data", write_libsvm(folder / "a.svm", 400)],
        "factorization": ["--generate", "20000", "--epochs", "4"],
        "clicks": f"--data {criteo} --batch-size 32 --bits 8 --units 4".split(),
    }


BAR = {"svm": 0.8, "factorization": 1.0, "clicks": 0.65}  # the loss; untrained: 1, 1.1, 0.69


@needs_mpi
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_learn_what_one_process_learns(name, arguments):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plain = module.main(arguments[name])
    plain = plain["loss"] if isinstance(plain, dict) else plain
    more = {"svm": ["--every", "50"], "clicks": ["--every", "4"]}.get(name, [])
    lines = []
    result = run_job(
        [sys.executable, str(EXAMPLES / f"peers_{name}.py"), *arguments[name], *more],
        2,
        max_restarts=0,
        environment={"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        show=lines.append,
        timeout=TIMEOUT,
    )
    assert (result.status, result.finished) == (0, (0, 1)), "\n".join(lines)
    found = [float(n) for n in re.findall(r"(?:loss|error) (\d\.\d+)", "\n".join(lines))]
    assert plain < BAR[name]
    assert max(found[-2:]) < BAR[name]
    assert abs(found[-1] - plain) < 0.1
