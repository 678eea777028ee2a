"""`twml-ops launch ... train`: a cluster of processes, one of which is an evaluator."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import twml_ops
from tests import forked
from tests.cli.test_train import METRICS
from tests.trained_runs import write_clicks
from tests.training.test_publish import input_array
from twml_ops import _child
from twml_ops.checkpoint import CheckpointManager
from twml_ops.cli import main
from twml_ops.core import Scorer
from twml_ops.data import open_source, split_for_validation
from twml_ops.distribute.launch import Ports
from twml_ops.models import ensemble_members
from twml_ops.training.trained_run import TrainedRun

# On both TensorFlows: tests/distribute/parameter_server.
pytestmark = pytest.mark.one_tf


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def run(request, libsvm, tmp_path_factory):
    out = tmp_path_factory.mktemp("cluster") / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # The current folder has an unbuilt copy of the package, which no process may import.
    checkout = tmp_path_factory.mktemp("checkout")
    native = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(twml_ops.__file__).parent, checkout / "twml_ops", ignore=native)
    count = str(request.param)
    command = _child.command("twml_ops.cli", "launch", "--ps", count)
    workers = ["--workers", count, "--evaluator"]
    # A worker must not end before the chief has written the run, which needs all servers.
    workers += ["--servers-in-workers"] if request.param > 1 else []
    options = ["--out", str(out), "--epochs", "8", "--batch-size", "16"]
    options += ["--checkpoint-every", "60", "--checkpoint-policy", "consecutive"]
    # The tables are small. The other runs replicate them, and this one has them on the servers.
    options += ["--publish", str(served_of(out)), "--partition-axis", "row"]
    done = subprocess.run(
        [*command, *workers, "--", "train", "--data", libsvm, *options],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for worker in range(request.param):
        said = rf"worker {worker} of {request.param} parsed 0\.0 MB; .* 0\.0 MB \(100\.0%"
        assert re.search(said, done.stdout), done.stdout
    return out


def served_of(out):
    """The folder of the versions of a run."""
    return out.parent.with_name(f"{out.parent.name}_served")


def test_a_cluster_writes_a_run_and_the_results_of_the_evaluator(run):
    names = ["metrics.json", "model.keras", "report.html", "run.json", "saved_model"]
    assert sorted(p.name for p in run.iterdir()) == ["evaluations.jsonl", *names]
    assert [p.name for p in run.parent.iterdir()] == [run.name]  # no checkpoints
    metrics = json.loads((run / "metrics.json").read_text())
    assert list(metrics) == METRICS
    assert metrics["auc"] > 0.7


def test_the_run_says_how_many_bytes_the_chief_has_parsed(run, libsvm):
    facts = json.loads((run / "run.json").read_text())
    size = Path(libsvm.removeprefix("libsvm:")).stat().st_size
    # Of one small file each worker parses all, in one unit that has the evaluation data as well.
    assert facts["parsed_bytes"] == facts["data_bytes"] == size


def test_the_last_evaluation_is_that_of_the_finished_run(run):
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps))
    assert steps[-1] >= 8 * 480 / 16
    metrics = json.loads((run / "metrics.json").read_text())
    for name, value in lines[-1].items():
        if name != "step":
            assert value == pytest.approx(metrics[name], rel=1e-5)


def test_the_evaluator_publishes_checkpoints_and_the_final_model(run, tmp_path):
    served = served_of(run)
    *before, last = sorted(served.iterdir(), key=lambda version: int(version.name))
    steps = [json.loads((v / "scorer.json").read_text()).get("step") for v in (*before, last)]
    assert steps[-1] is None
    evaluated = (run / "evaluations.jsonl").read_text().splitlines()
    assert set(steps[:-1]) <= {json.loads(line)["step"] for line in evaluated}
    main(["export", str(run), str(tmp_path / "export"), "--format", "scorer"])
    want = Scorer.load(tmp_path / "export")
    rows = {name: input_array(name, 3) for name in want.inputs}
    np.testing.assert_array_equal(Scorer.load(last).predict(rows), want.predict(rows))


def test_the_model_is_loaded_like_that_of_a_local_run(run):
    trained = TrainedRun(run)
    features, _ = next(iter(trained.source(None).dataset(32)))
    assert trained.model(features).shape == (32, 1)


def chief(data, folder, *words):
    """The status and the output of a cluster of one process, which runs its server itself."""
    ports = Ports(2)
    server, worker = (f"127.0.0.1:{port}" for port in ports.numbers)
    task = {"type": "worker", "index": 0, "servers": [0]}
    config = {"cluster": {"ps": [server], "worker": [worker]}, "task": task}
    options = ["--out", str(folder / "run"), "--batch-size", "16", *words]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CONFIG": json.dumps(config)}
    done = forked.run(
        ["-m", "twml_ops.cli", "train", "--data", data, *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    ports.close()
    return done.returncode, done.stdout + done.stderr


def test_a_cluster_keeps_its_trainings_until_its_run_is_written(libsvm, tmp_path):
    (tmp_path / "fail").touch()
    model = f"{Path(__file__).parent / 'failing_model.py'}:build"
    options = ["--model", model, "--set", f"folder={tmp_path}", "--set", "last=ckpt-*step-60"]
    options += ["--validation", "random", "--max-epochs", "2", "--checkpoint-keep", "1"]
    status, output = chief(libsvm, tmp_path, *options)
    assert status == 1
    assert "the disk is gone" in output
    (saved,) = sorted(path.name for path in (tmp_path / "run.checkpoints").glob("ckpt-*"))
    assert saved.endswith("step-60")  # of the refit: early stopping had fewer examples
    (tmp_path / "fail").unlink()
    # As if the process had been killed while it evaluated the model after the last epoch.
    next((tmp_path / "run.checkpoints").glob("stages-*/stage-2-epoch-2.json")).unlink()
    status, again = chief(libsvm, tmp_path, *options, "--resume")
    assert status == 0, again
    # The second process has made no step: both models were trained by the first one.
    ended = re.compile(r"epoch \d+/\d+ .*train loss.*")  # a slow epoch also has lines of progress
    epochs, found = ended.findall(output), ended.findall(again)
    assert len(epochs) == 4
    assert epochs[:3] == found[:3]
    evaluation = re.compile("evaluation loss .*AUC [.0-9]+")
    assert evaluation.findall(epochs[3]) == evaluation.findall(found[3])
    assert "train loss not measured" in found[3]
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["epoch_choice"]["epochs"] == facts["trained_epochs"] == 2
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["auc"] > 0.7
    assert not (tmp_path / "run.checkpoints").exists()


def test_a_cluster_keeps_the_weights_of_the_best_epoch_without_a_refit(libsvm, tmp_path):
    """Also if the chief is started again after the last epoch, which is not the best one."""
    model = f"{Path(__file__).parent / 'failing_model.py'}:build"
    options = ["--model", model, "--set", f"folder={tmp_path}", "--validation", "random"]
    options += ["--set", "last=stages-*/stage-1-epoch-2.json", "--no-refit", "--max-epochs", "2"]
    options += ["--learning-rate", "3", "--patience", "3"]
    (tmp_path / "fail").touch()
    status, output = chief(libsvm, tmp_path, *options)
    assert status == 1
    assert "the disk is gone" in output
    (tmp_path / "fail").unlink()
    status, output = chief(libsvm, tmp_path, *options, "--resume")
    assert status == 0, output
    losses = [float(x) for x in re.findall(r"validation loss ([\d.]+)  AUC", output)]
    choice = json.loads((tmp_path / "run" / "run.json").read_text())["epoch_choice"]
    assert choice["epochs"] == losses.index(min(losses)) + 1 < len(losses) == 2
    assert not choice["refit"]
    trained = TrainedRun(tmp_path / "run")
    part = split_for_validation(open_source(libsvm).split()[0], "random", 0.1).validation
    loss = tf.keras.losses.BinaryCrossentropy()
    found = [(loss(y, trained.model(x)), len(y)) for x, y in part.dataset(64)]
    mean = sum(float(a) * n for a, n in found) / sum(n for _, n in found)
    assert mean == pytest.approx(choice["log_loss"], rel=1e-4)


@pytest.mark.slow
def test_a_cluster_goes_on_with_the_members_of_an_ensemble_that_are_trained(libsvm, tmp_path):
    (tmp_path / "fail").touch()
    model = f"{Path(__file__).parent / 'failing_model.py'}:build"
    options = ["--model", model, "--set", f"folder={tmp_path}", "--epochs", "2", "--ensemble", "3"]
    options += ["--set", "last=stages-*/stage-2-epoch-2.json"]
    status, output = chief(libsvm, tmp_path, *options)
    assert status == 1
    assert "the disk is gone" in output
    assert [p.name for p in (tmp_path / "run.checkpoints" / "members").iterdir()] == ["1"]
    (tmp_path / "fail").unlink()
    status, output = chief(libsvm, tmp_path, *options, "--resume")
    assert status == 0, output
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len({member["seed"] for member in facts["members"]}) == 3
    members = ensemble_members(TrainedRun(tmp_path / "run").model)
    kernels = [np.concatenate([np.ravel(w) for w in m.trainable_weights]) for m in members]
    assert len(kernels) == 3
    for i in range(3):  # seeds differ in the order of the examples
        assert (kernels[i] != kernels[i - 1]).any()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["auc"] > 0.7
    assert not (tmp_path / "run.checkpoints").exists()


def write_two_labels(path):
    """The data of `write_clicks`, some of whose positives have a second label, `buy`."""
    write_clicks(path)
    head, *lines = path.read_text().splitlines()
    bought = [int(line[0] == "1" and i % 3 > 0) for i, line in enumerate(lines)]
    lines = [f"{line},{buy}" for line, buy in zip(lines, bought, strict=True)]
    path.write_text("\n".join([f"{head},buy", *lines, ""]))
    return f"csv:{path}"


@pytest.mark.parametrize(
    "labels", [pytest.param(["label"], marks=pytest.mark.slow), ["label", "buy"]]
)
def test_one_worker_trains_the_weights_of_one_process(labels, tmp_path):
    """Of several labels as well, whose sum of losses is trained and whose mean is reported."""
    data = write_two_labels(tmp_path / "x.csv")
    options = ["--label", ",".join(labels), *(["--drop", "buy"] if len(labels) == 1 else [])]
    options += ["--model", "dcn", "--set", "trees=false", "--set", "dropout=0", "--save-slots"]
    options += ["--set", "embedding_dropout=0", "--validation", "random", "--max-epochs", "2"]
    status, output = chief(data, tmp_path, *options)
    assert status == 0, output
    alone = ["--data", data, "--out", str(tmp_path / "alone"), "--batch-size", "16", *options]
    done = forked.run(["-m", "twml_ops.cli", "train", *alone], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cluster, process = (TrainedRun(tmp_path / name) for name in ("run", "alone"))
    weights = [run.model.trainable_variables for run in (cluster, process)]
    assert len(weights[0]) > 8
    for got, want in zip(*weights, strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=0, atol=1e-4)
    ours, theirs = (
        json.loads((tmp_path / name / "run.json").read_text()) for name in ("run", "alone")
    )
    for name in ("model", "model_options", "batch_size", "learning_rate", "trained_epochs"):
        assert ours[name] == theirs[name]
    losses = [facts["epoch_choice"]["log_loss"] for facts in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    same_slots(tmp_path / "run", tmp_path / "alone")


@pytest.mark.one_tf
@pytest.mark.slow
def test_one_worker_gives_ids_the_rows_that_one_process_gives(tmp_path):
    """More ids than the table has rows, in `train` as in a cluster; also of two workers."""
    data = f"csv:{tmp_path / 'x.csv'}"
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.5, 400) % 97
    lines = [f"{i % 3 > 0:d},a{i},b{i % 7}" for i in ids]
    (tmp_path / "x.csv").write_text("\n".join(["label,a,b", *lines, ""]))
    model = Path(__file__).with_name("new_id_model.py")
    options = ["--model", f"{model}:build", "--epochs", "2", "--save-slots"]
    status, output = chief(data, tmp_path, *options)
    assert status == 0, output
    alone = ["--data", data, "--out", str(tmp_path / "alone"), "--batch-size", "16", *options]
    done = forked.run(["-m", "twml_ops.cli", "train", *alone], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cluster, process = (TrainedRun(tmp_path / name).model for name in ("run", "alone"))
    assert cluster.get_layer("ids").lookup.num_rows_in_use == 23
    for got, want in zip(cluster.get_weights(), process.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 if got.dtype == np.float32 else 0)
    same_slots(tmp_path / "run", tmp_path / "alone")
    command = _child.command("twml_ops.cli", "launch", "--ps", "1", "--workers", "2", "--", "train")
    for mode in ("async", "sync"):
        words = ["--data", data, "--out", str(tmp_path / mode), "--mode", mode, *options]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout
        assert TrainedRun(tmp_path / mode).model.get_layer("ids").lookup.num_rows_in_use == 23


@pytest.mark.slow
def test_a_cluster_trains_the_model_that_its_chief_has_chosen_as_one_process_does(tmp_path):
    """In the time limit there is one trial, after which the options are the same in both."""
    data = write_clicks(tmp_path / "clicks.csv")
    options = ["--model", "auto", "--time-limit", "0.001", "--max-epochs", "3"]
    options += ["--validation", "random"]
    status, output = chief(data, tmp_path, *options)
    assert status == 0, output
    alone = ["--data", data, "--out", str(tmp_path / "alone"), "--batch-size", "16", *options]
    done = forked.run(["-m", "twml_ops.cli", "train", *alone], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("run", "alone")]
    for key in ("model", "model_options", "learning_rate", "batch_size"):
        assert facts[0][key] == facts[1][key], key
    for name in ("model_choice", "epoch_choice"):
        assert facts[0][name].keys() == facts[1][name].keys()
    trials = [[(t["model"], t["losses"]) for t in f["model_choice"]["trials"]] for f in facts]
    assert trials[0] == trials[1]


def same_slots(run, other):
    """Checks that the slots and the steps of the optimizers of two runs are equal."""
    ours, theirs = (CheckpointManager(path / "optimizer").latest() for path in (run, other))
    assert ours.manifest.step == theirs.manifest.step
    assert ours.entries.keys() == theirs.entries.keys()
    for name in ours.entries:
        np.testing.assert_allclose(ours.read(name), theirs.read(name), rtol=1e-3, atol=1e-4)


def test_a_cluster_goes_on_with_a_run_as_one_process_does(tmp_path):
    """With its weights, the slots of its optimizer, and rows for new categories."""
    path = tmp_path / "new.csv"
    old, new = write_clicks(tmp_path / "old.csv"), write_clicks(path)
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(line.replace("a1", "new") for line in lines), ""]))
    model = ["--model", "dcn", "--set", "trees=false", "--set", "dropout=0", "--save-slots"]
    model += ["--set", "embedding_dropout=0", "--epochs", "1", "--batch-size", "16"]
    go_on = ["--from", str(tmp_path / "old"), "--validation", "random", "--max-epochs", "2"]
    for name, data, options in (("old", old, model), ("alone", new, go_on)):
        words = ["--data", data, "--out", str(tmp_path / name), *options]
        done = forked.run(["-m", "twml_ops.cli", "train", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    status, output = chief(new, tmp_path, *go_on)
    assert status == 0, output
    before, want, got = (
        [np.asarray(w) for w in TrainedRun(tmp_path / name).model.weights]
        for name in ("old", "alone", "run")
    )
    assert [w.shape for w in want] != [w.shape for w in before]  # new categories have rows
    for each, other in zip(got, want, strict=True):
        np.testing.assert_allclose(each, other, rtol=0, atol=1e-4)
    same_slots(tmp_path / "run", tmp_path / "alone")


@pytest.mark.slow
def test_all_workers_begin_with_the_weights_of_the_run_that_they_go_on_with(tmp_path):
    """Also with a server that is killed, and several labels. A small learning rate shows it: new
    weights would be far from these.
    """
    words = ["--data", write_two_labels(tmp_path / "x.csv"), "--out"]
    model = ["--model", "dcn", "--set", "trees=false", "--epochs", "1", "--batch-size", "16"]
    model += ["--label", "label,buy"]
    done = forked.run(
        ["-m", "twml_ops.cli", "train", *words, str(tmp_path / "old"), *model, "--save-slots"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    go_on = ["--from", str(tmp_path / "old"), "--epochs", "3", "--learning-rate", "1e-7"]
    command = _child.command("twml_ops.cli", "launch", "--ps", "2", "--workers", "2")
    process = subprocess.Popen(
        [*command, "--evaluator", "--", "train", *words, str(tmp_path / "new"), *go_on, "--debug"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    killed, lines = [], []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("[worker 0] epoch ") and not killed:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            killed.append(int(children.split()[0]))
            os.kill(killed[0], signal.SIGKILL)
    assert process.wait() == 0, "".join(lines[-60:])
    assert killed
    old, new = (TrainedRun(tmp_path / name).model.trainable_weights for name in ("old", "new"))
    for before, after in zip(old, new, strict=True):
        np.testing.assert_allclose(np.asarray(after), np.asarray(before), rtol=0, atol=1e-3)
    *_, last = (tmp_path / "new" / "evaluations.jsonl").read_text().splitlines()
    metrics = json.loads((tmp_path / "new" / "metrics.json").read_text())
    assert json.loads(last)["log_loss"] == pytest.approx(metrics["log_loss"], rel=1e-4)


def run_while_processes_are_killed(command, seed, times):
    """Runs a cluster, of which any process is killed after each of the first epochs."""
    rng, killed, lines = random.Random(seed), 0, []
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout:
        lines.append(line)
        if line.startswith("[worker 0] epoch ") and killed < times:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            os.kill(int(rng.choice(children.split())), signal.SIGKILL)
            killed += 1
    assert process.wait() == 0, "".join(lines[-60:])
    assert killed == times


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_cluster_whose_processes_are_killed_still_writes_its_run(mode, tmp_path):
    """At the ends of five epochs, of early stopping, the second model or the refit."""
    out = tmp_path / "run"
    options = ["--out", str(out), "--mode", mode, "--checkpoint-every", "5", "--timeout", "60"]
    options += ["--validation", "random", "--batch-size", "32", "--debug"]
    command = _child.command("twml_ops.cli", "launch", "--ps", "2", "--workers", "2", "--")
    command += ["train", "--data", write_clicks(tmp_path / "x.csv"), *options]
    run_while_processes_are_killed(command, mode, 5)
    facts = json.loads((out / "run.json").read_text())
    assert facts["trained_epochs"] == facts["epoch_choice"]["epochs"]
    assert len(facts["model_choice"]["trials"]) == 2
    assert json.loads((out / "metrics.json").read_text())["auc"] > 0.7
    assert not out.with_name("run.checkpoints").exists()


@pytest.mark.slow
def test_micro_batches_train_the_same_bits_in_each_cluster(tmp_path):
    """Also where the chief adapts the model and averages weights; the model has dropout."""
    write_clicks(tmp_path / "x.csv")
    options = ["--data", f"csv:{tmp_path / 'x.csv'}", "--mode", "sync", "--micro-batches", "4"]
    options += ["--model", "dcn", "--set", "trees=false", "--epochs", "2"]
    found = []
    for servers, workers in ((1, 1), (2, 2)):
        out = tmp_path / f"{servers}-{workers}"
        command = ["launch", "--ps", str(servers), "--workers", str(workers), "--", "train"]
        done = forked.run(
            ["-m", "twml_ops.cli", *command, *options, "--out", str(out)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found.append(TrainedRun(out).model.get_weights())
        metrics = json.loads((out / "metrics.json").read_text())
        found[-1].append(np.asarray(metrics["log_loss"]))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
