"""`twml-ops launch ... train`: a cluster of processes, one of which is an evaluator."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import twml_ops
from tests import forked
from tests.cli.test_train import METRICS
from twml_ops import _child
from twml_ops.distribute.launch import Ports
from twml_ops.training.trained_run import TrainedRun


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def run(request, libsvm, tmp_path_factory):
    out = tmp_path_factory.mktemp("cluster") / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # The current folder has an unbuilt copy of the package, which no process may import.
    checkout = tmp_path_factory.mktemp("checkout")
    native = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(twml_ops.__file__).parent, checkout / "twml_ops", ignore=native)
    command = _child.command("twml_ops.cli", "launch", "--ps", "1")
    workers = ["--workers", str(request.param), "--evaluator"]
    options = ["--out", str(out), "--epochs", "8", "--batch-size", "16"]
    options += ["--checkpoint-every", "60", "--checkpoint-policy", "consecutive"]
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
    model = f"{Path(__file__).parent / 'failing_model.py'}:build"
    options = ["--model", model, "--set", f"folder={folder}", "--set", "last=step-120"]
    options += ["--out", str(folder / "run"), "--epochs", "4", "--batch-size", "16", *words]
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


@pytest.mark.one_tf
def test_a_cluster_keeps_its_checkpoints_until_its_run_is_written(libsvm, tmp_path):
    (tmp_path / "fail").touch()
    status, output = chief(libsvm, tmp_path)
    assert status == 1
    assert "the disk is gone" in output
    saved = sorted(path.name for path in (tmp_path / "run.checkpoints").glob("ckpt-*"))
    assert saved[-1].endswith("step-120")
    (tmp_path / "fail").unlink()
    status, output = chief(libsvm, tmp_path, "--resume")
    assert status == 0, output
    # The second process has made no step: its model was trained by the first one.
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["auc"] > 0.7
    assert not (tmp_path / "run.checkpoints").exists()
