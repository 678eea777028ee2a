"""Tests that `make test` runs on one TensorFlow version only do not import TensorFlow."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
(LISTED,) = re.findall(
    r"^ANY_TF_TESTS = ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M
)
PATHS = LISTED.replace("\\\n", " ").split()


def imported(path):
    """The top-level packages that a file imports, in any scope."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", PATHS)
def test_tests_that_run_once_import_no_tensorflow(path):
    path = ROOT / path
    files = [path] if path.is_file() else sorted(path.glob("test_*.py"))
    assert files
    for file in files:
        assert not {"tensorflow", "keras", "tf_keras"} & set(imported(file)), file.name
