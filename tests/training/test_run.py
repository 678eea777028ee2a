"""A training from Python gives the model of the command, and prints nothing itself."""

import json
import subprocess
import sys

import numpy as np
import pytest

from twml_ops import training
from twml_ops.data import open_source
from twml_ops.training.trained_run import TrainedRun


class Recorder(training.Reporter):
    """Remembers what happened, in order."""

    def __init__(self):
        self.events = []

    def data(self, train, held_out, sizes):
        self.events.append(("data", *sizes))

    def model(self, name, weights, optimizer, trees):
        self.events.append(("model", name))

    def epoch(self, number, count, record, monitored):
        self.events.append(("epoch", number, count))


@pytest.fixture(scope="module")
def trained(libsvm):
    recorder = Recorder()
    config = training.RunConfig(libsvm, epochs=2)
    return training.train(config, reporter=recorder), recorder


@pytest.mark.one_tf
def test_a_training_from_python_gives_the_model_and_the_metrics_of_the_command(trained, libsvm_run):
    result, _ = trained
    weights = TrainedRun(libsvm_run).model.get_weights()
    for ours, theirs in zip(result.model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    metrics = json.loads((libsvm_run / "metrics.json").read_text())
    assert result.metrics["log_loss"] == metrics["log_loss"]
    facts = json.loads((libsvm_run / "run.json").read_text())
    # The command, and what the folder of a run has.
    differ = {"command", "finished", "files", "phases", "wall_seconds"}
    assert {k for k in facts if facts[k] != json.loads(json.dumps(result.facts)).get(k)} <= differ


@pytest.mark.one_tf
def test_a_reporter_is_told_what_a_training_does(trained):
    _, recorder = trained
    (_, name) = recorder.events[1]
    epochs = [("epoch", 1, 2), ("epoch", 2, 2)]
    assert recorder.events == [("data", 480, 120), ("model", name), *epochs]


def test_open_sources_are_trained_and_evaluated_on_without_a_word(libsvm, capsys):
    data, held_out = open_source(libsvm).split()
    config = training.RunConfig("a table", model="logistic", epochs=1)
    result = training.train(config, data, held_out)
    sizes = result.facts["train_examples"], result.facts["eval_examples"]
    assert sizes == (480, 120)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="eval: expected data as well"):
        training.train(config, None, held_out)


@pytest.mark.one_tf
def test_the_package_of_trainings_does_not_import_tensorflow():
    code = "import sys, twml_ops.training; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
