"""A cluster is compared with one process once, and only if the training still takes long."""

import json
import re
import sys

import pytest
import tensorflow as tf

from twml_ops.distribute.launch import LocalCluster
from twml_ops.training import cluster_speed
from twml_ops.training.cluster_speed import (
    CLUSTER_SECONDS,
    LEAST_SECONDS,
    ClusterSpeed,
    fits_one_process,
    speed_of_one_process,
)
from twml_ops.training.results import History, SpeedComparison

STEP_EXAMPLES = 256


def compare(steps, seconds_per_step, measure=lambda: 1000.0):
    """Trains by a clock that only steps move on; returns what was found, and the steps before."""
    found, now = [], 0.0

    def report(speeds):
        found.append((speeds, step))

    speed = ClusterSpeed(measure, report, steps, STEP_EXAMPLES, lambda: now)
    for step in range(1, steps + 1):
        now += seconds_per_step
        speed.on_step(step)
    return found


@pytest.mark.one_tf
def test_a_long_training_is_compared_once():
    ((speeds, step),) = compare(1000, 0.5)
    assert speeds == SpeedComparison(cluster=2 * STEP_EXAMPLES, one_process=1000.0)
    assert step == 1 + CLUSTER_SECONDS / 0.5


@pytest.mark.one_tf
def test_a_short_training_is_not():
    assert compare(int((CLUSTER_SECONDS + LEAST_SECONDS) / 0.5) - 1, 0.5) == []


@pytest.mark.one_tf
def test_a_measurement_that_fails_is_a_warning_and_not_repeated():
    attempts = []

    def measure():
        attempts.append(1)
        raise MemoryError("no memory\nof this size")

    with pytest.warns(RuntimeWarning, match="measured: MemoryError: no memory$"):
        assert compare(1000, 0.5, measure) == []
    assert attempts == [1]


@pytest.mark.one_tf
def test_only_a_slower_cluster_gets_a_warning():
    assert SpeedComparison(1000.0, 999.0).warning() is None
    said = SpeedComparison(1000.0, 20_000.0).warning()
    assert "slower than one process" in said
    assert "1,000" in said
    assert "20,000" in said


@pytest.mark.one_tf
def test_a_history_has_the_speeds_after_json():
    for speeds in (None, SpeedComparison(1.0, 2.0)):
        history = History(speeds=speeds)
        assert History.from_json(json.loads(json.dumps(history.to_json()))) == history


@pytest.mark.one_tf
def test_large_models_are_not_copied():
    assert fits_one_process(1000)
    assert not fits_one_process(2**40)


def test_the_speed_of_one_process_is_that_of_its_steps(monkeypatch):
    monkeypatch.setattr(cluster_speed, "PROCESS_SECONDS", 0.01)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="sigmoid")])
    data = tf.data.Dataset.from_tensors((tf.ones([8, 3]), tf.ones([8, 1])))
    speed = speed_of_one_process(model, tf.keras.optimizers.SGD(0.1), "mse", data, 8)
    assert 0 < speed < float("inf")
    assert model.optimizer.iterations.numpy() > 3 * cluster_speed.STEPS_PER_EXECUTION - 1


IMPATIENT = (
    "from twml_ops.cli import main; from twml_ops.training import cluster_speed as c; "
    "c.CLUSTER_SECONDS = c.LEAST_SECONDS = c.PROCESS_SECONDS = 0.2; import sys; main(sys.argv[1:])"
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_chief_of_a_cluster_says_it_and_the_report_too(libsvm, tmp_path, mode):
    out, lines = tmp_path / "run", []
    options = ["--out", str(out), "--epochs", "60", "--batch-size", "16", "--mode", mode]
    command = [sys.executable, "-c", IMPATIENT, "train", "--data", libsvm, *options]
    with LocalCluster(command, 1, 2, max_restarts=0, show=lines.append) as cluster:
        assert cluster.wait(300) == 0, lines[-30:]
    said = [line for line in lines if "slower than one process" in line]
    facts = json.loads((out / "run.json").read_text())["speeds"]
    slower = facts["cluster"] < facts["one_process"]
    assert len(said) == slower
    assert ("slower than one process" in (out / "report.html").read_text()) == slower
    assert all(re.match(r"\[worker 0\] warning This cluster", line) for line in said)
