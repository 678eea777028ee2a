"""Ops and whole trainings have the same bits where the documents promise them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.ops.determinism import op_names
from tests.trained_runs import write_clicks
from twml_ops import core
from twml_ops.training.trained_run import TrainedRun

pytestmark = [pytest.mark.slow, pytest.mark.one_tf]
ROOT = Path(__file__).resolve().parents[2]
LEVELS = ["baseline", "avx2", "avx512"]  # of x86-64
THREADS = 4
# docs/design/kernels.md names both.
OF_THE_PROCESS = {"message_port"}  # a port and a secret
OF_THE_LEVEL = {
    "apply_rows",
    "grouped_sparse_linear",
    "resource_sparse_linear",
    "resource_sparse_linear_values_grad",
    "sparse_linear",
    "sparse_linear_backward_apply",
    "sparse_linear_values_grad",
    "sparse_linear_weights_grad",
    "tiered_sparse_linear",
    "tiered_sparse_linear_values_grad",
}


def digests(threads, **environment):
    """Op -> whether the call was large, a digest of integers, a digest of all."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.determinism", str(threads)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def usual():
    return digests(THREADS)


def others(usual, found, column):
    """The ops whose digests differ, except the ones that differ in each process."""
    pairs = ((name, usual["ops"][name], found["ops"][name]) for name in found["ops"])
    return {name for name, a, b in pairs if a[column] != b[column]} - OF_THE_PROCESS


def test_each_op_is_called_and_nearly_all_with_many_entries(usual):
    assert set(usual["ops"]) == set(op_names())
    small = {name for name, (is_large, *_) in usual["ops"].items() if not is_large}
    assert small <= {"tree_sums"}


@pytest.mark.parametrize("threads", [1, 2, THREADS])
def test_each_op_has_the_same_bits_for_any_number_of_threads_and_in_each_process(usual, threads):
    assert others(usual, digests(threads), -1) == set()


@pytest.mark.parametrize("switch", ["0", "1"])
def test_each_op_has_the_same_bits_with_and_without_onednn(usual, switch):
    assert others(usual, digests(2, TF_ENABLE_ONEDNN_OPTS=switch), -1) == set()


@pytest.mark.parametrize("level", LEVELS[: LEVELS.index(core.simd_level())])
def test_ops_that_differ_between_simd_levels_are_known_and_differ_in_floats_only(usual, level):
    found = digests(THREADS, TWML_OPS_SIMD=level)
    assert found["level"] == level
    assert others(usual, found, 1) == set()
    assert others(usual, found, -1) <= OF_THE_LEVEL
    assert others(found, digests(1, TWML_OPS_SIMD=level), -1) == set()


@pytest.mark.parametrize("model", ["logistic", "deepfm"])
def test_a_training_that_is_repeated_has_the_same_bits_and_logistic_for_any_number_of_threads(
    tmp_path, model
):
    data = write_clicks(tmp_path / "x.csv")
    processors = sorted(os.sched_getaffinity(0))

    def weights(name, count):
        """The weights after a training on so many processors."""
        code = (
            "import os, sys\n"
            f"os.sched_setaffinity(0, {processors[:count]})\n"
            "from twml_ops.cli import main; main(sys.argv[1:])"
        )
        out = tmp_path / name
        words = ["train", "--data", data, "--model", model, "--epochs", "2", "--out", str(out)]
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [np.array(w) for w in TrainedRun(out).model.get_weights()]

    first = weights("first", 2)
    compared = [weights("again", 2)]
    if model == "logistic":
        compared.append(weights("one", 1))
    for found in compared:
        for mine, theirs in zip(found, first, strict=True):
            np.testing.assert_array_equal(mine, theirs)
