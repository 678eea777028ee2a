"""`twml-ops train` continues a run that was stopped, as if it had not been."""

import contextlib
import dataclasses
import io
import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tests.trained_runs import write_libsvm
from twml_ops.checkpoint import CheckpointManager
from twml_ops.cli import main
from twml_ops.cli.train import checkpoint_options
from twml_ops.training.callbacks import HistoryCallback
from twml_ops.training.checkpoints import RunCheckpoints, table_policy
from twml_ops.training.config import CheckpointOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.kept_results import KeptTrials
from twml_ops.training.results import FittedModel, History
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("bare_runs")

MODEL = Path(__file__).with_name("signalling_model.py")
# 30 steps an epoch while the number of epochs is chosen, 33 in the training on all data.
OPTIONS = ["--batch-size", "32", "--max-epochs", "2"]
CHOICE_STEPS = 2 * 30


@pytest.fixture(scope="module")
def libsvm(tmp_path_factory):
    return write_libsvm(tmp_path_factory.mktemp("data") / "a.svm", 1300)


def train(libsvm, out, *options, model="sparse_mlp"):
    main(["train", "--data", libsvm, "--out", str(out), *OPTIONS, "--model", model, *options])


def weights(run):
    return [np.array(w) for w in TrainedRun(run).model.get_weights()]


def metrics(run):
    """All metrics but those that depend on the time."""
    found = json.loads((run / "metrics.json").read_text())
    return {k: v for k, v in found.items() if k not in ("seconds", "examples_per_second")}


def run_steps(libsvm, out, signals, *options):
    """Runs the command in a process of its own, which signals itself."""
    arguments = ["--data", libsvm, "--out", str(out), *OPTIONS, "--model", f"{MODEL}:build"]
    code = (
        "import os, sys; os.environ['SIGNALS'] = sys.argv.pop(1)\n"
        "from twml_ops.cli import main; main()"
    )
    return forked.run(
        ["-c", code, signals, "train", *arguments, *options],
        capture_output=True,
        text=True,
        cwd=MODEL.parents[2],
    )


def run_here(libsvm, out, signals, *options):
    """Runs the same command in this process, and returns its status and what it says of an error.

    A process that imports TensorFlow takes longer than these trainings.
    """
    arguments = ["train", "--data", libsvm, "--out", str(out), *OPTIONS, "--model"]
    arguments += [f"{MODEL}:build", *options]
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setenv("SIGNALS", signals)
        patch.setattr("sys.argv", ["twml-ops", *arguments])  # which a message repeats
        try:
            main(arguments)
        except SystemExit as ended:
            return ended.code, errors.getvalue()
    return 0, ""


@pytest.fixture(scope="module")
def undisturbed(libsvm, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run_here(libsvm, out, "") == (0, "")
    assert not (out.parent / "run.checkpoints").exists()
    return out


def check_equal(run, undisturbed):
    assert metrics(run) == metrics(undisturbed)
    for mine, theirs in zip(weights(run), weights(undisturbed), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    facts = [json.loads((r / "run.json").read_text())["epoch_choice"] for r in (run, undisturbed)]
    assert facts[0] == facts[1] is not None
    assert not run.with_name("run.checkpoints").exists()


@pytest.mark.one_tf
def test_signals_leave_a_run_that_can_be_continued(libsvm, tmp_path, undisturbed, capsys):
    """Also where checkpoints have the rows that changed since the one before."""
    out, bases = tmp_path / "run", []
    policy = ["--checkpoint-every", "1", "--checkpoint-policy", "consecutive"]
    # In the first epoch; at its end, after the 14 steps that were left; and in the fit.
    for signals, resume in [
        ("9:SIGINT", []),
        ("15:SIGINT", ["--resume"]),
        (f"{CHOICE_STEPS - 30 + 20}:SIGTERM", ["--resume"]),
    ]:
        if resume:
            status, errors = run_here(libsvm, out, signals, *resume, *policy)
        else:
            done = run_steps(libsvm, out, signals, *policy)
            status, errors = done.returncode, done.stderr
        assert status == 130, errors
        message = r"twml-ops: interrupted after step \d+; to continue: twml-ops train .* --resume\n"
        assert re.fullmatch(message, errors)
        assert not out.exists()
        newest = CheckpointManager(out.with_name("run.checkpoints")).latest()
        bases.append(newest.manifest.base)
    assert bases[0] is None
    assert bases[1] is not None
    capsys.readouterr()
    assert run_here(libsvm, out, "", "--resume", *policy) == (0, "")
    assert re.search(r"continuing from step \d+ \(epoch \d\) of ", capsys.readouterr().out)
    check_equal(out, undisturbed)
    assert TrainedRun(out).facts["checkpoint_policy"] == "consecutive"


@pytest.mark.one_tf
def test_a_run_that_was_stopped_in_the_last_step_of_a_training_is_continued(
    libsvm, tmp_path, undisturbed
):
    out = tmp_path / "run"
    epochs = json.loads((undisturbed / "run.json").read_text())["trained_epochs"]
    for signal_of, *options in ((CHOICE_STEPS,), (33 * epochs, "--resume"), (0, "--resume")):
        status, said = run_here(libsvm, out, f"{signal_of}:SIGINT", *options)
        assert status == (130 if signal_of else 0), said
    check_equal(out, undisturbed)


@pytest.mark.one_tf
def test_a_run_that_was_killed_is_continued(libsvm, tmp_path, undisturbed, capsys):
    out = tmp_path / "run"
    for signals in ("20:SIGKILL", f"{CHOICE_STEPS}:SIGKILL"):
        done = run_steps(libsvm, out, signals, "--resume", "--checkpoint-every", "16")
        assert done.returncode == -9
    capsys.readouterr()
    assert run_here(libsvm, out, "", "--resume") == (0, "")
    assert "continuing from step" in capsys.readouterr().out
    check_equal(out, undisturbed)


@pytest.mark.one_tf
def test_checkpoints_of_another_run_are_not_overwritten(libsvm, tmp_path, capsys, monkeypatch):
    out, model = tmp_path / "run", f"{MODEL}:build"
    monkeypatch.setenv("SIGNALS", "9:SIGINT")
    with pytest.raises(SystemExit) as interrupted:
        train(libsvm, out, model=model)
    assert interrupted.value.code == 130
    monkeypatch.delenv("SIGNALS")
    for options, message in (
        ([], "has checkpoints of a run that has not finished: use --resume to continue it, or"),
        (["--resume", "--seed", "5"], "was written by a training with seed = 0, got 5"),
        (["--resume", "--checkpoint-bits", "8"], "with checkpoint_bits = 32, got 8"),
        (
            ["--resume", "--set", "units=5"],
            "was written by a training with model_options = {}, got {'units'",
        ),
    ):
        with pytest.raises(SystemExit):
            train(libsvm, out, *options, model=model)
        assert message in capsys.readouterr().err
    train(libsvm, out, "--overwrite", "--epochs", "1", model=model)
    assert not out.with_name("run.checkpoints").exists()


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--checkpoint-policy", "often"], "checkpoint_policy: expected one of full, one-shot, "),
        (["--checkpoint-bits", "5"], "checkpoint_bits: expected one of 32, 8, 4, 3, 2, got 5"),
        (["--checkpoint-slot-bits", "0"], "checkpoint_slot_bits: expected one of 32, 8, "),
    ],
)
def test_table_options_that_are_not_possible_are_named(libsvm, tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        train(libsvm, tmp_path / "run", *options)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.one_tf
def test_an_ensemble_goes_on_with_the_member_that_was_stopped(libsvm, tmp_path, capsys):
    options = ["--ensemble", "2", "--epochs", "1", "--checkpoint-every", "1"]
    assert run_here(libsvm, tmp_path / "undisturbed", "", *options) == (0, "")
    out, members = tmp_path / "run", tmp_path / "run.checkpoints" / "members"
    # The model counts the steps of a member in a command. Each has 30: the signal is in the first
    # and in the second member, as 10 steps are left of the one before.
    for kept in range(2):
        capsys.readouterr()
        status, errors = run_here(libsvm, out, "20:SIGINT", "--resume", *options)
        assert status == 130, errors
        assert len(list(members.glob("*/model.keras"))) == kept
        assert ("continuing from step" in capsys.readouterr().out) == (kept > 0)
    _, errors = run_here(libsvm, out, "", *options)
    assert "has checkpoints of a run that has not finished" in errors
    # 10 steps are left: the first member is not trained again.
    assert run_here(libsvm, out, "11:SIGINT", "--resume", *options) == (0, "")
    assert metrics(out) == metrics(tmp_path / "undisturbed")
    for mine, theirs in zip(weights(out), weights(tmp_path / "undisturbed"), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not members.parent.exists()


def test_members_and_trials_are_those_of_the_same_configuration(tmp_path):
    folder, resume = tmp_path / "run.checkpoints", CheckpointOptions(resume=True)
    config = RunConfig("csv:a.csv", ensemble=2, model_options={"units": 4, "hidden": [8]})
    first = RunCheckpoints(folder, config, CheckpointOptions(), False)
    model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
    first.keep_member(0, FittedModel(model, History()))
    first.keep_trials(KeptTrials([], 1.0))
    first.close()
    same = dataclasses.replace(config, model_options={"hidden": [8], "units": 4})
    kept = RunCheckpoints(folder, same, resume, False)
    assert kept.load_member(0) is not None
    assert kept.load_trials() is not None
    for change in ({"data": "csv:b.csv"}, {"seed": 1}, {"learning_rate": 0.9}, {"model": "dcn"}):
        other = RunCheckpoints(folder, dataclasses.replace(config, **change), resume, False)
        (name,) = change
        for load in (lambda c: c.load_member(0), RunCheckpoints.load_trials):
            with pytest.raises(
                UserError, match=f"was written by a training with {name} = .*--overwrite"
            ):
                load(other)


@pytest.mark.one_tf
def test_an_interrupted_run_says_whether_it_can_be_continued(tmp_path):
    config = RunConfig("csv:a.csv", ensemble=2)
    empty, kept = (
        RunCheckpoints(tmp_path / name, config, CheckpointOptions(), False) for name in "ab"
    )
    kept.keep_trials(KeptTrials([], 1.0))
    found = [(str(e), e.can_continue) for e in (empty.interrupted(), kept.interrupted())]
    assert found == [
        ("interrupted; no checkpoint could be written", False),
        ("interrupted; what has been trained is kept", True),
    ]


def test_nothing_of_a_training_that_runs_is_removed(tmp_path):
    folder, config = tmp_path / "run.checkpoints", RunConfig("csv:a.csv", ensemble=2)
    running = RunCheckpoints(folder, config, CheckpointOptions(), False)
    running.keep_trials(KeptTrials([], 1.0))
    before = sorted(folder.rglob("*"))
    with CheckpointManager(folder).alone():
        with pytest.raises(UserError, match="another process writes checkpoints here"):
            RunCheckpoints(folder, config, CheckpointOptions(), True)
        assert set(before) < set(folder.rglob("*"))
    RunCheckpoints(folder, config, CheckpointOptions(), True)
    assert not folder.exists()


@pytest.mark.one_tf
def test_a_signal_after_the_last_step_of_a_member_ends_the_run(
    libsvm, tmp_path, capsys, monkeypatch
):
    options = ["--ensemble", "2", "--epochs", "1", "--checkpoint-every", "1"]
    members = tmp_path / "run.checkpoints" / "members"
    with monkeypatch.context() as patch:
        patch.setattr(
            HistoryCallback, "on_train_end", lambda *_: signal.raise_signal(signal.SIGINT)
        )
        with pytest.raises(SystemExit) as ended:
            train(libsvm, tmp_path / "run", *options)
    assert ended.value.code == 130
    assert "to continue: " in capsys.readouterr().err
    assert [path.name for path in members.iterdir()] == ["0"]
    train(libsvm, tmp_path / "run", "--resume", *options)
    train(libsvm, tmp_path / "undisturbed", *options)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "undisturbed")


def test_tables_and_slots_have_the_widths_of_the_options(libsvm):
    config = RunConfig(
        libsvm, checkpoint_policy="one-shot", checkpoint_bits=4, checkpoint_slot_bits=32
    )
    policy = table_policy(config)
    assert policy.policy == "one-shot"
    labels = ("optimizer/sparse_linear_kernel_accumulator", "sparse_linear/kernel")
    assert [policy.bits_of(label) for label in labels] == [None, 4]


@pytest.mark.one_tf
def test_a_run_without_checkpoints_begins_at_the_beginning(libsvm, tmp_path, capsys):
    train(libsvm, tmp_path / "run", "--resume", "--epochs", "1", "--checkpoint-every", "0")
    assert "continuing" not in capsys.readouterr().out
    assert (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("every", "steps", "seconds"),
    [
        ("7", 7, None),
        ("30s", None, 30.0),
        ("2m", None, 120.0),
        ("0", None, None),
        ("0m", None, None),
    ],
)
def test_the_interval_has_a_unit(every, steps, seconds):
    given = {"checkpoint_every": every, "seed": 1}
    expected = CheckpointOptions(steps, seconds, 3, True)
    assert checkpoint_options(every, 3, True, given, in_cluster=False) == expected
    assert given == {"seed": 1}


def test_a_cluster_counts_steps():
    given = {"checkpoint_every": "70"}
    checkpoint_options("70", 2, False, given, in_cluster=True)
    assert given == {"checkpoint_every": 70}
    for every in ("10m", "0"):
        with pytest.raises(UserError, match="a cluster counts steps, got"):
            checkpoint_options(every, 2, False, {"checkpoint_every": every}, in_cluster=True)


@pytest.mark.parametrize("every", ["", "x", "10h", "-1", "1.5m", "10 m"])
def test_a_wrong_interval_is_named(every):
    with pytest.raises(UserError, match="--checkpoint-every: expected steps"):
        checkpoint_options(every, 2, False, {}, in_cluster=False)
