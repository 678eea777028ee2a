"""TensorFlow and LightGBM are imported without packages that a command may not need, and TensorFlow
without collections, so that what its import makes is never collected."""

import subprocess
import sys

import pytest

from twml_ops import _tensorflow_import

CODE = """
import sys
from twml_ops import _tensorflow_import
_tensorflow_import.defer()
_tensorflow_import.defer()
import tensorflow, lightgbm
print(*tensorflow.FOUND, *lightgbm.FOUND)
import sklearn, matplotlib.pyplot
print(sklearn.VALUE, matplotlib.pyplot.VALUE)
assert not any(type(f) is _tensorflow_import._DeferringFinder for f in sys.meta_path)
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
from twml_ops._tensorflow_import import deferred
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
from twml_ops._tensorflow_import import deferred
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
from twml_ops._tensorflow_import import deferred
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
    _tensorflow_import.defer()
    assert sys.meta_path == before
    hooks = [f for f in sys.meta_path if isinstance(f, _tensorflow_import._ContextFinder)]
    assert not any("tensorflow" in hook.contexts for hook in hooks)


COLLECTIONS = """
import gc, sys
sys.path[:0] = [{root!r}, {folder!r}]
from twml_ops import _tensorflow_import
{before}
_tensorflow_import.spare_imports()
_tensorflow_import.spare_imports()
try:
    import tensorflow
    print(tensorflow.ENABLED)
except ImportError as e:
    print(e)
print(gc.isenabled(), gc.get_freeze_count() > 0, "tensorflow" in sys.modules)
"""


def collections(tmp_path, body, before=""):
    (tmp_path / "tensorflow.py").write_text(body)
    code = COLLECTIONS.format(root=sys.path[0], folder=str(tmp_path), before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ENABLED = "import gc; ENABLED = gc.isenabled()"


def test_the_import_of_tensorflow_is_not_collected(tmp_path):
    assert collections(tmp_path, ENABLED) == ["False", "True True True"]


def test_a_process_without_collections_stays_so(tmp_path):
    assert collections(tmp_path, ENABLED, before="gc.disable()") == ["False", "False False True"]


def test_collections_go_on_after_an_import_that_failed(tmp_path):
    assert collections(tmp_path, "raise ImportError('broken')") == ["broken", "True False False"]
