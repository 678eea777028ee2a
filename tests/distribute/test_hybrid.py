"""Hybrid training with servers in one process; see hybrid_laws.py, where the laws are."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
LAWS = [
    node.name
    for node in ast.parse((FOLDER / "hybrid_laws.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and "_" in node.name
]


@pytest.fixture(scope="module")
def results():
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(FOLDER / "hybrid_laws.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("law", LAWS)
def test_law(results, law):
    assert results[law] is None, results[law]
