"""TensorFlow's import does not load packages that a command may not need."""

import subprocess
import sys

import pytest

from twml_ops import _deferred_imports, _tensorflow_import

CODE = """
import sys
from twml_ops import _deferred_imports
_deferred_imports.defer()
_deferred_imports.defer()
import tensorflow
print(*tensorflow.FOUND)
import sklearn, matplotlib.pyplot
print(sklearn.VALUE, matplotlib.pyplot.VALUE)
assert not any(type(f).__module__.startswith("twml_ops") for f in sys.meta_path)
"""
TENSORFLOW = """
import sys
FOUND = []
import matplotlib.pyplot as plt
FOUND += [name for name in ("pyplot",) if name in sys.loaded]
try:
    import sklearn
except ImportError:
    FOUND.append("no sklearn")
"""


@pytest.fixture
def packages(tmp_path):
    """A folder with packages that record when they are loaded."""
    for name in ("sklearn", "matplotlib"):
        (tmp_path / name).mkdir()
        body = f"import sys; sys.loaded.append({name!r}); VALUE = {name!r}"
        (tmp_path / name / "__init__.py").write_text(body)
    (tmp_path / "matplotlib" / "pyplot.py").write_text(
        "import sys; sys.loaded.append('pyplot'); VALUE = 'pyplot'"
    )
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    return tmp_path


def run(code, packages):
    path = [str(packages), *(p for p in sys.path if "site-packages" not in p)]
    code = f"import sys; sys.path[:] = {path!r}; sys.loaded = []\n{code}"
    return subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False
    )


def test_packages_load_at_their_first_use_after_tensorflow(packages):
    done = run(CODE, packages)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["no sklearn", "sklearn pyplot"]


def test_packages_that_are_not_installed_stay_so(packages):
    code = """
from twml_ops._deferred_imports import deferred
with deferred():
    for name in ("sklearn", "matplotlib.pyplot"):
        try:
            __import__(name)
            print(name)
        except ModuleNotFoundError:
            pass
"""
    for name in ("sklearn", "matplotlib"):
        for file in (packages / name).iterdir():
            file.unlink()
        (packages / name).rmdir()
    done = run(code, packages)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_nothing_is_deferred_once_tensorflow_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    before = list(sys.meta_path)
    _deferred_imports.defer()
    assert sys.meta_path == before
    assert not any(isinstance(f, _tensorflow_import._Finder) for f in sys.meta_path)
