"""Every program in `benchmarks` can be imported; `make test-slow` runs them with tiny sizes."""

import importlib
from pathlib import Path

import pytest

import benchmarks

FOLDER = Path(benchmarks.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("name", MODULES)
def test_a_program_can_be_imported(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name.partition(".")[0] in ("benchmarks", "twml_ops"):
            raise
        pytest.skip(f"needs {e.name}")
