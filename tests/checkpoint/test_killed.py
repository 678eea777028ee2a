"""A training that is killed at any moment continues with the bits of one that was not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from twml_ops.checkpoint import CheckpointManager

ROOT = Path(__file__).resolve().parents[2]
KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)


def run(folder, moment):
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.killed_training", str(folder), moment],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )


def result(folder):
    with np.load(folder / "result.npz") as values:
        return {name: values[name].tobytes() for name in values.files}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(folder, "end")
    assert done.returncode == 0, done.stderr
    return result(folder)


def assert_same(found, undisturbed):
    # In Keras 2 a model has no metrics if there was nothing left to train.
    want = {n: v for n, v in undisturbed.items() if n in found or not n.startswith("metrics/")}
    assert found == want


def moments(count, seed):
    """Random moments: of operations on files, after steps, and at bytes of a file."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        kind = ("event", "bytes", "step")[i % 3]
        if kind == "event":
            yield f"event:{rng.integers(1, 120)}"
        elif kind == "step":
            yield f"step:{rng.integers(1, 12)}"
        else:
            yield f"bytes:{rng.integers(1, 6)}:{rng.integers(0, 5000)}"


def check_killed(tmp_path, undisturbed, count, seed):
    folder, step, killed = tmp_path / "run", 0, 0
    for moment in moments(count, seed):
        done = run(folder, moment)
        assert done.returncode in (0, *KILLED), done.stderr
        killed += done.returncode != 0
        assert int(done.stdout.split()[-1]) >= step  # what was complete stays complete
        checkpoints = CheckpointManager(folder / "checkpoints").all()
        for checkpoint in checkpoints:
            checkpoint.verify()
        step = max([step, *(c.manifest.step for c in checkpoints)])
        if done.returncode == 0:
            assert_same(result(folder), undisturbed)
            folder, step = tmp_path / f"run{killed}", 0
    done = run(folder, "end")
    assert done.returncode == 0, done.stderr
    assert_same(result(folder), undisturbed)
    assert killed > count / 2


def test_training_that_is_killed_five_times_reaches_the_same_bits(tmp_path, undisturbed):
    check_killed(tmp_path, undisturbed, 5, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_training_that_is_killed_at_random_moments_reaches_the_same_bits(
    tmp_path, undisturbed, seed
):
    check_killed(tmp_path, undisturbed, 24, seed=100 + seed)
