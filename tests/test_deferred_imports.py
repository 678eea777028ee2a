"""The imports of TensorFlow and LightGBM load no packages that a command may not need."""

import subprocess
import sys

import pytest

from twml_ops import _deferred_imports, _import_hooks

CODE = """
import sys
from twml_ops import _deferred_imports
_deferred_imports.defer()
_deferred_imports.defer()
import tensorflow, lightgbm
print(*tensorflow.FOUND, *lightgbm.FOUND)
import sklearn, matplotlib.pyplot
print(sklearn.VALUE, matplotlib.pyplot.VALUE)
assert not any(type(f).__module__ == _deferred_imports.__name__ for f in sys.meta_path)
"""
IMPORTS = """
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
    for name in ("tensorflow", "lightgbm"):
        (tmp_path / f"{name}.py").write_text(IMPORTS)
    return tmp_path


def run(code, packages):
    path = [str(packages), *(p for p in sys.path if "site-packages" not in p)]
    code = f"import sys; sys.path[:] = {path!r}; sys.loaded = []\n{code}"
    return subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False
    )


def test_packages_load_at_their_first_use_after_the_imports(packages):
    done = run(CODE, packages)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["no sklearn no sklearn", "sklearn pyplot"]


def test_asking_a_deferred_module_where_it_is_does_not_load_it(packages):
    code = """
from twml_ops._deferred_imports import deferred
with deferred():
    import matplotlib.pyplot as plt
print(plt.__name__, plt.__file__.rpartition("/")[2], plt.__doc__, "pyplot" in sys.loaded)
print(hasattr(plt, "nothing"), sys.loaded.count("pyplot"), type(plt).__name__, plt.VALUE)
"""
    done = run(code, packages)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "matplotlib.pyplot pyplot.py None False",
        "False 1 module pyplot",
    ]


def test_a_deferred_module_that_fails_to_load_fails_each_time(packages):
    (packages / "matplotlib" / "pyplot.py").write_text(
        "import sys\nimport matplotlib.pyplot as itself\nassert not hasattr(itself, 'VALUE')\n"
        "sys.loaded.append('pyplot')\nraise ImportError('no display')"
    )
    code = """
from twml_ops._deferred_imports import deferred
with deferred():
    import matplotlib.pyplot as plt
for _ in range(2):
    try:
        plt.VALUE
    except ImportError as e:
        print(e, sys.loaded.count("pyplot"))
"""
    done = run(code, packages)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["no display 1", "no display 2"]


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
    hooks = [f for f in sys.meta_path if isinstance(f, _import_hooks._Finder)]
    assert not any("tensorflow" in hook.contexts for hook in hooks)
