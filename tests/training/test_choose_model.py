"""`twml-ops train --model auto`: the model is chosen by its loss on the validation data."""

import json

import numpy as np
import pytest

from tests.trained_runs import write_criteo, write_libsvm
from twml_ops.cli import main
from twml_ops.cli.configure import configure
from twml_ops.training import selection
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.selection import check_auto
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("bare_runs")

AUTO = ["--model", "auto", "--validation", "random", "--validation-share", "0.3"]


def facts_of(folder):
    return json.loads((folder / "run.json").read_text())


def weights(folder):
    return np.concatenate([np.ravel(w) for w in TrainedRun(folder).model.get_weights()])


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    data = write_libsvm(folder / "a.svm", 200)
    options = [*AUTO, "--max-epochs", "1", "--ensemble", "2", "--time-limit", "3600"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_LADDERS", {"l2": (0.0, 0.0001), "units": (16, 32)})
        main(["train", "--data", data, "--out", str(folder / "run"), *options])
    return folder / "run"


def test_the_run_is_that_of_the_trial_with_the_lowest_loss(chosen):
    facts = facts_of(chosen)
    trials = facts["model_choice"]["trials"]
    best = trials[facts["model_choice"]["best"]]
    assert min(best["losses"]) == min(min(t["losses"]) for t in trials)
    for name in ("model", "model_options", "learning_rate"):
        assert facts[name] == best[name]
    assert facts["epoch_choice"]["log_loss"] == min(best["losses"])
    assert facts["trained_epochs"] == 1
    assert len(facts["members"]) == 2
    assert list(chosen.glob("tensorboard/trials/1_dcn/validation/events*"))


def test_a_search_that_was_interrupted_goes_on_after_its_last_trial(tmp_path, capsys, monkeypatch):
    data = write_libsvm(tmp_path / "a.svm", 150)
    options = [*AUTO, "--max-epochs", "1", "--time-limit", "3600", "--learning-rate", "0.01"]
    monkeypatch.setattr(selection, "_LADDERS", {"l2": (0.0, 0.0001)})
    main(["train", "--data", data, "--out", str(tmp_path / "whole"), *options])
    trials = facts_of(tmp_path / "whole")["model_choice"]["trials"]
    done = []

    def run_trial(*args, **kwargs):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(original(*args, **kwargs))
        return done[-1]

    original = selection.run_trial
    arguments = ["train", "--data", data, "--out", str(tmp_path / "run"), *options]
    monkeypatch.setattr("sys.argv", ["twml-ops", *arguments])
    with monkeypatch.context() as patch:
        patch.setattr(selection, "run_trial", run_trial)
        with pytest.raises(SystemExit):
            main(arguments)
    error = " ".join(capsys.readouterr().err.split())
    assert "interrupted; what has been trained is kept; to continue: twml-ops train" in error
    with pytest.raises(SystemExit):
        main(arguments)  # neither --resume nor --overwrite
    assert "has checkpoints of a run that has not finished" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*arguments, "--resume", "--seed", "7"])
    assert "was written by a training with seed = 0, got 7" in " ".join(
        capsys.readouterr().err.split()
    )
    done.clear()

    def count_trials(*args, **kwargs):
        done.append(original(*args, **kwargs))
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(selection, "run_trial", count_trials)
        main([*arguments, "--resume"])
    assert len(done) == len(trials) - 3
    found = facts_of(tmp_path / "run")["model_choice"]["trials"]
    assert [t["losses"] for t in found] == [t["losses"] for t in trials]
    np.testing.assert_array_equal(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert not (tmp_path / "run.checkpoints").exists()


def test_all_models_are_tried_and_then_options_of_the_best(chosen):
    trials = facts_of(chosen)["model_choice"]["trials"]
    assert [t["model"] for t in trials[:3]] == ["dcn", "sparse_mlp", "logistic"]
    assert all(t["model_options"] == {} for t in trials[:3])
    first = min(trials[:3], key=lambda t: min(t["losses"]))
    assert {t["model"] for t in trials[3:]} == {first["model"]}
    tried = [(t["learning_rate"], str(t["model_options"])) for t in trials[3:]]
    assert len(set(tried)) == len(tried) > 2


def test_the_report_and_info_show_the_trials(chosen, capsys):
    trials = facts_of(chosen)["model_choice"]["trials"]
    page = (chosen / "report.html").read_text(encoding="utf-8")
    assert "<h2>Choice of the model</h2>" in page
    capsys.readouterr()
    main(["info", str(chosen)])
    shown = capsys.readouterr().out
    for i, trial in enumerate(trials, 1):
        assert f"{min(trial['losses']):.5f}" in page
        assert f"trial {i} " in shown


def test_the_configuration_of_the_run_repeats_it_without_the_search(chosen, tmp_path):
    main(["train", "--config", str(chosen), "--out", str(tmp_path / "again")])
    assert facts_of(tmp_path / "again")["model_choice"] is None
    np.testing.assert_array_equal(weights(tmp_path / "again"), weights(chosen))


def test_the_first_trial_is_finished_whatever_the_time_limit(tmp_path, capsys):
    data, out = write_criteo(tmp_path / "c.tsv", 200), tmp_path / "run"
    options = [*AUTO, "--max-epochs", "2", "--time-limit", "1e-9", "--no-refit"]
    main(["train", "--data", data, "--out", str(out), *options])
    (trial,) = facts_of(out)["model_choice"]["trials"]
    assert (trial["model"], trial["outcome"]) == ("dcn", "finished")
    assert facts_of(out)["epoch_choice"]["refit"] is False
    shown = capsys.readouterr().out
    assert f"   1  {min(trial['losses']):.5f} " in shown
    assert "the best of 1 trials" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 2}, "it cannot go with --epochs"),
        ({"validation": "none"}, "it cannot go with --validation none"),
        ({"model_options": {"units": 2}}, "model_options: --model auto chooses them"),
        ({"time_limit": 0.0}, "--time-limit must be positive, got 0"),
    ],
)
def test_options_that_contradict_the_choice_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        check_auto(RunConfig("a", model="auto", **options))


def test_few_examples_and_options_of_the_model_are_refused(tmp_path, capsys):
    data = write_libsvm(tmp_path / "a.svm", 50)
    with pytest.raises(SystemExit):
        main(["train", "--data", data, "--model", "auto", "--out", str(tmp_path / "run")])
    assert "too few examples" in capsys.readouterr().err
    with pytest.raises(UserError, match="--set: --model auto chooses the options"):
        configure(None, {"data": "a", "model": "auto"}, ["units=2"])
