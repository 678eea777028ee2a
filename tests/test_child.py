"""Child processes run the package that started them; an unbuilt source folder says what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import twml_ops
from twml_ops import _child

PACKAGE = Path(twml_ops.__file__).resolve().parent
WHICH = "import twml_ops.core; print(twml_ops.__file__)"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder with the package's source and no native library, as a checkout has it."""
    folder = tmp_path_factory.mktemp("checkout")
    native = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, folder / "twml_ops", ignore=native)
    return folder


def run(command, folder):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_child_runs_its_parents_package_whatever_the_folder_is(checkout):
    done = run(_child.command("timeit", "-n1", "-r1", WHICH), checkout)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).parent == PACKAGE


def test_a_child_gets_the_arguments_and_is_the_main_module(tmp_path):
    (tmp_path / "shown.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = run(_child.command("shown", "-a", "b c"), tmp_path)
    assert done.stdout == "__main__ ['-a', 'b c']\n"


@pytest.mark.parametrize("module", ["twml_ops", "twml_ops.core", "twml_ops.layers"])
def test_an_import_of_an_unbuilt_source_folder_says_what_to_do(checkout, module):
    done = run([sys.executable, "-c", f"import {module}"], checkout)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: twml_ops in {checkout} has no native library for Python")
    assert "python setup.py build_ext --inplace" in last


def test_a_module_that_is_run_in_an_unbuilt_source_folder_says_so_in_one_line(checkout):
    done = run([sys.executable, "-m", "twml_ops.selfcheck"], checkout)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "python setup.py build_ext --inplace" in done.stderr


def test_no_module_of_the_package_starts_python_by_itself():
    # _compile.py is run by its path: it is a program that imports nothing of this package. mpirun
    # of the wheel is beside the interpreter.
    allowed = {Path("_child.py"), Path("tpu/compile_subprocess.py"), Path("peers/launch.py")}
    allowed.add(Path("peers/group.py"))  # the program of a rank, started again
    files = {
        p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py") if "sys.executable" in p.read_text()
    }
    assert files <= allowed
