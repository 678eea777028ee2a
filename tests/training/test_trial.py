"""One trial: the training of early stopping, without output."""

import dataclasses
import math

import pytest

from tests.trained_runs import write_libsvm
from twml_ops.data import DataError, open_source, original_errors, split_for_validation
from twml_ops.training.config import RunConfig
from twml_ops.training.results import Trial
from twml_ops.training.trials import TrialStopped, run_trial

CONFIG = RunConfig(
    "",
    model="sparse_mlp",
    batch_size=32,
    max_epochs=3,
    learning_rate=0.3,
    model_options={"units": 2, "hidden": ()},
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    data = write_libsvm(tmp_path_factory.mktemp("data") / "a.svm", 300)
    return split_for_validation(open_source(data), "random", 0.3)


def test_a_trial_reports_the_loss_of_each_epoch_and_chooses_the_best(parts, capsys):
    seen = []
    trial, _, choice = run_trial(
        CONFIG, parts, on_epoch=lambda epoch, loss: seen.append((epoch, loss))
    )
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    assert tuple(loss for _, loss in seen) == trial.losses
    assert (trial.epochs, trial.log_loss) == (choice.epochs, choice.log_loss)
    assert trial.log_loss == min(trial.losses)
    assert trial.outcome == "finished"
    assert capsys.readouterr().out == ""
    assert run_trial(CONFIG, parts).trial.losses == trial.losses


def test_a_trial_can_be_stopped_after_an_epoch(parts):
    def stop(epoch, loss):
        if epoch == 2:
            raise TrialStopped("enough")

    trial, _, choice = run_trial(CONFIG, parts, on_epoch=stop)
    assert (trial.outcome, trial.note, len(trial.losses)) == ("stopped", "enough", 2)
    assert trial.log_loss == math.inf
    assert choice is None


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"optimizer": "sgd", "learning_rate": 1e30}, "the loss"),
        ({"model": "fm", "model_options": {}}, "at least two fields"),
    ],
)
def test_a_model_that_cannot_be_trained_is_a_failed_trial(parts, change, note):
    trial = run_trial(dataclasses.replace(CONFIG, **change), parts).trial
    assert trial.outcome == "failed"
    assert note in trial.note
    assert trial.log_loss == math.inf


def test_data_that_cannot_be_read_are_no_failed_trial(tmp_path):
    (tmp_path / "a.svm").write_text("+1 1:1\n-1 2:1\n" * 20)
    parts = split_for_validation(open_source(f"libsvm:{tmp_path}/a.svm?dim=9"), "order", 0.3)
    (tmp_path / "b.svm").write_text("+1 1:1\n-1 zero\n")
    broken = open_source(f"libsvm:{tmp_path}/b.svm?dim=9")
    with pytest.raises(DataError, match="line 2"), original_errors(broken):
        run_trial(CONFIG, parts._replace(fit=broken))


def test_a_trial_comes_back_from_its_facts():
    trial = Trial("dcn", {"units": 2}, 0.1, (0.5, math.inf), 1.5, "failed", "because")
    facts = {**trial.facts(), "losses": [0.5, None]}  # as JSON holds infinity
    assert Trial.from_facts(facts) == trial
