"""`twml-ops launch --peers N -- train`: the model of one process, and ranks that are killed."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests import forked
from tests.peers.jobs import ROOT, TIMEOUT, needs_mpi
from tests.trained_runs import write_clicks, write_libsvm
from tests.training.test_publish import input_array
from twml_ops.cli import main
from twml_ops.core import Scorer
from twml_ops.training.config import PEER_OPTIONS
from twml_ops.training.trained_run import TrainedRun

pytestmark = [needs_mpi, pytest.mark.one_tf]


def launch(*words, on_line=lambda process, line: None):
    """The status and the output of a command, which ends within a limit."""
    with subprocess.Popen(
        [sys.executable, "-m", "twml_ops.cli", "launch", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        limit = threading.Timer(TIMEOUT, process.send_signal, [signal.SIGINT])  # it ends mpirun
        limit.start()
        lines = []
        for line in process.stdout:
            lines.append(line)
            on_line(process, line)
        limit.cancel()
    return process.returncode, " ".join(" ".join(lines).split())


def facts_of(folder):
    """run.json and metrics.json of a run."""
    return [json.loads((folder / f"{name}.json").read_text()) for name in ("run", "metrics")]


def train_words(folder, *options):
    data = write_libsvm(folder / "a.svm", 300)  # one unit: the ranks share its batches
    words = ["train", "--data", data, "--model", f"{ROOT}/tests/training/dying_model.py:build"]
    words += ["--set", f"folder={folder}", "--out", str(folder / "run")]
    return [*words, "--batch-size", "8", "--learning-rate", "0.1", *options]


@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_peer_trains_the_weights_of_one_process_bit_for_bit(tmp_path, members):
    """With early stopping, averaged weights, and a refit of each member of an ensemble."""
    words = ["-m", "twml_ops.cli", "train", "--data", write_clicks(tmp_path / "x.csv")]
    words += ["--model", "dcn", "--set", "trees=false", "--set", "dropout=0"]
    words += ["--set", "embedding_dropout=0", "--validation", "random", "--max-epochs", "3"]
    words += ["--batch-size", "16", "--ensemble", str(members), "--out"]
    for name, environment in (("alone", {}), ("peer", {PEER_OPTIONS: "{}"})):
        done = forked.run(
            [*words, str(tmp_path / name)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    weights = [TrainedRun(tmp_path / name).model.weights for name in ("peer", "alone")]
    assert len(weights[0]) > 8
    for got, want in zip(*weights, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    (ours, metrics), (theirs, others) = (facts_of(tmp_path / name) for name in ("peer", "alone"))
    assert len(ours["members"] or [ours]) == members
    for name in ("model", "model_options", "batch_size", "learning_rate", "epoch_choice"):
        assert ours[name] == theirs[name]
    for name in ("log_loss", "auc", "validation_log_loss", "examples"):
        assert metrics[name] == others[name]
    files = [sorted(p.name for p in (tmp_path / name).iterdir()) for name in ("peer", "alone")]
    assert files[0] == [name for name in files[1] if name != "tensorboard"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "peer", "x.csv"]


@pytest.mark.slow
def test_a_peer_goes_on_with_a_run_as_one_process_does_bit_for_bit(tmp_path):
    """With its weights, the slots of its optimizer, and rows for new categories."""
    old, new = (write_clicks(tmp_path / name) for name in ("old.csv", "new.csv"))
    path = tmp_path / "new.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(line.replace("a1", "new") for line in lines), ""]))
    model = ["--model", "dcn", "--set", "trees=false", "--set", "dropout=0"]
    model += ["--set", "embedding_dropout=0", "--epochs", "1", "--save-slots"]
    go_on = ["--from", str(tmp_path / "old"), "--validation", "random", "--max-epochs", "2"]
    for name, data, options, environment in (
        ("old", old, model, {}),
        ("alone", new, go_on, {}),
        ("peer", new, go_on, {PEER_OPTIONS: "{}"}),
    ):
        words = ["-m", "twml_ops.cli", "train", "--data", data, "--batch-size", "16", *options]
        done = forked.run(
            [*words, "--out", str(tmp_path / name)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    before, want, got = (
        [np.asarray(w) for w in TrainedRun(tmp_path / name).model.weights]
        for name in ("old", "alone", "peer")
    )
    assert [w.shape for w in want] != [w.shape for w in before]  # new categories have rows
    for each, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(each, other)
    (ours, _), (theirs, _) = (facts_of(tmp_path / name) for name in ("peer", "alone"))
    assert ours["epoch_choice"] == theirs["epoch_choice"]


@pytest.mark.slow
def test_all_peers_begin_with_the_weights_of_the_run_that_they_go_on_with(tmp_path):
    """Also the one that takes the place of a rank that is killed. A small learning rate shows it:
    the average would otherwise be far from these weights.
    """
    killed = []
    words = ["train", "--data", write_clicks(tmp_path / "x.csv"), "--batch-size", "16"]
    words += ["--epochs", "4", "--out"]
    model = ["--model", "dcn", "--set", "trees=false"]

    def kill(process, line):
        if line.startswith("epoch ") and not killed:
            (mpirun,) = children_of(process.pid)
            killed.append(children_of(mpirun)[0])
            os.kill(killed[0], signal.SIGKILL)

    done = forked.run(
        ["-m", "twml_ops.cli", *words, str(tmp_path / "old"), *model],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    go_on = ["--from", str(tmp_path / "old"), "--learning-rate", "1e-7"]
    words += [str(tmp_path / "new"), *go_on, "--checkpoint-every", "5"]
    status, output = launch("--peers", "2", "--", *words, on_line=kill)
    assert status == 0, output
    assert killed
    old, new = (TrainedRun(tmp_path / name).model.trainable_weights for name in ("old", "new"))
    for before, after in zip(old, new, strict=True):
        np.testing.assert_allclose(np.asarray(after), np.asarray(before), rtol=0, atol=1e-3)


def test_killed_ranks_continue_from_their_checkpoints_and_a_survivor_becomes_the_chief(tmp_path):
    """Both ranks are killed in early stopping, after two of three epochs, and the chief again in
    the refit, in which a new process takes the place of the lost one.
    """
    options = ["--validation", "random", "--max-epochs", "3", "--patience", "3"]
    words = train_words(tmp_path, *options, "--checkpoint-every", "14", "--checkpoint-keep", "9")
    status, output = launch("--peers", "2", "--every", "4", "--max-restarts", "1", "--", *words)
    assert status == 0, output
    assert output.count("continuing from step 28 (epoch 3)") == 1
    assert "ranks [0] were lost, 1 go on" in output
    assert "ranks [0] were replaced" in output
    end = "without others 1 times (lost: []), 1 were replaced; all started again 1 times"
    assert end in output
    facts, metrics = facts_of(tmp_path / "run")
    assert facts["trained_epochs"] == facts["epoch_choice"]["epochs"] <= 3
    assert metrics["examples"] == 3 * 224 + facts["trained_epochs"] * 240
    assert metrics["log_loss"] < 0.6
    # Processes that are killed may leave hidden parts of the run.
    assert sorted(p.name for p in tmp_path.glob("[!.]*")) == ["a.svm", "run"]


@pytest.mark.slow
def test_a_lost_rank_is_replaced_and_the_data_divided_anew_after_an_epoch(tmp_path):
    """A rank dies in the first of six epochs, and the one that replaces it in a later one."""
    words = train_words(tmp_path, "--epochs", "6", "--set", "deaths=one")
    status, output = launch("--peers", "2", "--every", "4", "--max-restarts", "1", "--", *words)
    assert status == 0, output
    assert "ranks [1] were replaced" in output
    assert "without others 2 times (lost: [1]), 1 were replaced; all started again 0" in output
    _, metrics = facts_of(tmp_path / "run")
    assert metrics["examples"] == 6 * 240
    assert metrics["log_loss"] < 0.6


def test_a_job_with_a_wrong_argument_is_not_started_again():
    status, output = launch("--peers", "2", "--", "train", "--data", "flights", "--out", "/proc/x")
    assert status == 1, output
    assert "cannot be written" in output
    assert "0 were replaced; all started again 0 times" in output


@pytest.mark.slow
def test_two_peers_train_several_labels_and_quantize_their_checkpoints(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(9, size=400)
    labels = rng.random((2, 400)) < x / 9
    lines = [f"{int(a)},{int(b)},a{i}" for a, b, i in zip(*labels, x, strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(["click,buy,site", *lines]))
    words = ["train", "--data", f"csv:{tmp_path / 'x.csv'}", "--label", "click,buy"]
    words += ["--epochs", "2", "--batch-size", "16", "--out", str(tmp_path / "run")]
    words += ["--checkpoint-every", "5", "--checkpoint-bits", "8"]
    status, output = launch("--peers", "2", "--", *words)
    assert status == 0, output
    _, metrics = facts_of(tmp_path / "run")
    assert metrics["auc"] > 0.7


@pytest.mark.slow
def test_the_first_of_two_peers_publishes_its_checkpoints_and_the_final_model(tmp_path):
    data, served = write_libsvm(tmp_path / "a.svm", 300), tmp_path / "served"
    words = ["train", "--data", data, "--model", "sparse_mlp", "--epochs", "2"]
    words += ["--checkpoint-every", "10", "--publish", str(served), "--batch-size", "16"]
    status, output = launch("--peers", "2", "--", *words, "--out", str(tmp_path / "run"))
    assert status == 0, output
    *before, last = sorted(served.iterdir(), key=lambda version: int(version.name))
    steps = [json.loads((v / "scorer.json").read_text()).get("step") for v in (*before, last)]
    assert steps[-1] is None
    assert len(steps) >= 2
    assert steps[:-1] == sorted(set(steps[:-1]))
    main(["export", str(tmp_path / "run"), str(tmp_path / "export"), "--format", "scorer"])
    want = Scorer.load(tmp_path / "export")
    rows = {name: input_array(name, 3) for name in want.inputs}
    np.testing.assert_array_equal(Scorer.load(last).predict(rows), want.predict(rows))


@pytest.mark.slow
def test_two_peers_that_are_killed_train_the_model_of_one_process(tmp_path):
    """One of them, chosen at random, while another model is built and at the ends of epochs."""
    rng, killed = random.Random(0), 0
    words = ["train", "--data", write_clicks(tmp_path / "x.csv"), "--validation", "random"]
    words += ["--batch-size", "16"]

    def kill(process, line):
        nonlocal killed
        if line.startswith(("epoch ", "time   second model", "model ")) and killed < 5:
            (mpirun,) = children_of(process.pid)
            os.kill(rng.choice(children_of(mpirun)), signal.SIGKILL)
            killed += 1

    options = ["--checkpoint-every", "20", "--out", str(tmp_path / "peers")]
    status, output = launch("--peers", "2", "--", *words, *options, on_line=kill)
    assert status == 0, output
    assert killed >= 3
    alone = ["-m", "twml_ops.cli", *words, "--out", str(tmp_path / "alone")]
    done = forked.run(alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (ours, metrics), (theirs, others) = (facts_of(tmp_path / name) for name in ("peers", "alone"))
    assert ours["trained_epochs"] == ours["epoch_choice"]["epochs"]
    for facts in (ours, theirs):
        assert [trial["model"] for trial in facts["model_choice"]["trials"]] == ["dcn", "deepfm"]
    assert metrics["log_loss"] == pytest.approx(others["log_loss"], abs=0.03)


def children_of(pid):
    """The processes that one has started."""
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
