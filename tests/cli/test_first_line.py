"""The output of a command begins with its own first line, without logs of other libraries."""

import os
import subprocess
import sys

import pytest

from twml_ops import _child, _startup_log


def run(*arguments, **variables):
    """Runs a command in a process of its own, without TF_CPP_MIN_LOG_LEVEL, as most users do."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        _child.command("twml_ops.cli", *arguments),
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("arguments", "first"),
    [(["--help"], "Usage: "), (["info"], "twml_ops "), (["selfcheck"], "twml_ops ")],
)
def test_output_begins_with_the_programs_own_line(arguments, first):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lstrip().startswith(first)
    assert done.stderr == ""


def test_training_begins_with_its_own_line(libsvm, tmp_path):
    options = ["--epochs", "1", "--batch-size", "64", "--model", "logistic"]
    done = run("train", "--data", libsvm, "--out", str(tmp_path / "run"), *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("time   start ")
    assert done.stderr == ""


ABSL = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
INFO = b"I0000 00:00:1795386210.262655    9848 port.cc:153] oneDNN custom operations are on.\n"
SECOND = b"To enable the following instructions: AVX2, rebuild TensorFlow.\n"
ERROR = b"E0000 00:00:1795386210.3    9848 cuda_dnn.cc:8310] Unable to register cuDNN factory\n"
FATAL = b"F0000 00:00:1795386210.3    9848 cpu_feature_guard.cc:31] compiled to use AVX\n"
OLD = b"2026-11-22 22:25:01.838153: I tensorflow/core/util/port.cc:113] oneDNN is on.\n"
OTHER = b"a line of another library\n"


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        ("0", [ABSL, INFO, SECOND, OTHER, OLD, SECOND, ERROR, FATAL]),
        ("1", [ABSL, OTHER, ERROR, FATAL]),
        ("2", [OTHER, ERROR, FATAL]),
        ("3", [OTHER, FATAL]),
        ("no number", [ABSL, INFO, SECOND, OTHER, OLD, SECOND, ERROR, FATAL]),
    ],
)
@pytest.mark.one_tf
def test_a_level_hides_messages_below_it(level, kept):
    keep = _startup_log.line_filter(level)
    lines = [ABSL, INFO, SECOND, OTHER, OLD, SECOND, ERROR, FATAL]
    assert [line for line in lines if keep(line)] == kept


IMPORT = """
import os, sys
from twml_ops import _startup_log
_startup_log.quiet()
{}
import tensorflow
print(tensorflow.VALUE)
os.write(2, b"I0000 00:00:1.2    3 after.cc:1] the import\\n")
"""
MODULE = f"""
import os
os.write(2, {INFO!r} + {FATAL!r} + {OTHER!r})
VALUE = 7
"""


@pytest.mark.parametrize(
    ("set_up", "shown"),
    [
        ("", [FATAL, OTHER, b"I0000 00:00:1.2    3 after.cc:1] the import\n"]),
        ("os.close(2); os.open(os.devnull, os.O_WRONLY)", []),
    ],
)
def test_only_the_import_of_tensorflow_is_filtered(tmp_path, set_up, shown):
    (tmp_path / "tensorflow.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    code = IMPORT.format(set_up)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    assert done.stdout == b"7\n"
    assert done.stderr == b"".join(shown)


def test_the_output_of_an_import_that_aborts_is_shown(tmp_path):
    (tmp_path / "tensorflow.py").write_text(f"import os; os.write(2, {FATAL!r}); os.abort()")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format("")], env=environment, capture_output=True, check=False
    )
    assert done.returncode < 0
    assert done.stderr == FATAL


UNUSED = ("sklearn", "scipy.stats", "twml_ops.distribute", "matplotlib.figure")
FIRST_STEP = f"""
import sys
from twml_ops import cli

cli.prepare_imports()
from twml_ops.training import callbacks

def first_step(self, batch, logs=None):
    for name in {UNUSED!r}:
        module = sys.modules.get(name)
        if module is not None and type(module).__name__ != "_LazyModule":
            print("imported:", name)
    raise SystemExit(0)

callbacks.HistoryCallback.on_train_batch_end = first_step
cli.main(sys.argv[1:])
"""


@pytest.mark.one_tf
def test_the_first_step_does_not_wait_for_packages_that_it_does_not_use(libsvm, tmp_path):
    out = str(tmp_path / "run")
    options = ["train", "--data", libsvm, "--out", out, "--epochs", "1", "--model", "sparse_mlp"]
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "imported:" not in done.stdout
