"""`twml-ops launch --peers N -- train`, whose ranks are killed."""

import json
import signal
import subprocess
import sys

import pytest

from tests.peers.jobs import ROOT, TIMEOUT, needs_mpi
from tests.trained_runs import write_libsvm

pytestmark = [needs_mpi, pytest.mark.one_tf]


def launch(*words):
    """The status and the output of a command, which ends within a limit."""
    with subprocess.Popen(
        [sys.executable, "-m", "twml_ops.cli", "launch", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends mpirun
            raise
    return process.returncode, " ".join(output.split())


def train_words(folder, epochs):
    data = write_libsvm(folder / "a.svm", 300)  # one unit: the ranks share its examples
    words = ["train", "--data", data, "--model", f"{ROOT}/tests/training/dying_model.py:build"]
    words += ["--set", f"folder={folder}", "--out", str(folder / "run"), "--epochs", str(epochs)]
    return [*words, "--batch-size", "8", "--learning-rate", "0.1"]


def test_killed_ranks_continue_from_their_checkpoints_and_a_survivor_finishes_the_run(tmp_path):
    """Both ranks are killed after two of four epochs, and the first one again after the third."""
    words = [*train_words(tmp_path, 4), "--checkpoint-every", "15", "--checkpoint-keep", "9"]
    status, output = launch("--peers", "2", "--every", "4", "--max-restarts", "1", "--", *words)
    assert status == 0, output
    assert output.count("continuing from step 30 (epoch 3)") == 1
    assert "ranks [0] were lost, 1 go on" in output
    end = "without others 1 times (lost: [0]), 0 were replaced; all started again 1 times"
    assert end in output
    # The rank without a checkpoint began with the third epoch, from the weights of the other one.
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["examples"] == 2 * 120
    assert metrics["log_loss"] < 0.6
    assert not (tmp_path / "run.rank-1.checkpoints").exists()


def test_a_lost_rank_is_replaced_and_the_data_divided_anew_after_an_epoch(tmp_path):
    """A rank dies after the first of six epochs, and the one that replaces it after the third."""
    words = [*train_words(tmp_path, 6), "--set", "deaths=one"]
    status, output = launch("--peers", "2", "--every", "4", "--max-restarts", "1", "--", *words)
    assert status == 0, output
    assert "ranks [1] were replaced" in output
    assert "without others 2 times (lost: [1]), 1 were replaced; all started again 0" in output
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    # Half of the examples in four epochs; all of them in the two after the second loss was found.
    assert metrics["examples"] == 4 * 120 + 2 * 240
    assert metrics["log_loss"] < 0.6


def test_a_job_with_a_wrong_argument_is_not_started_again():
    status, output = launch("--peers", "2", "--", "train", "--data", "flights", "--out", "/proc/x")
    assert status == 1, output
    assert "cannot be written" in output
    assert "0 were replaced; all started again 0 times" in output
