"""The default model is compared with a second one on the validation data."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.quality import film_ratings
from benchmarks.quality.planted_files import write_files
from twml_ops.cli import main
from twml_ops.data import open_source
from twml_ops.training import selection
from twml_ops.training.config import RunConfig
from twml_ops.training.model import with_batch_size
from twml_ops.training.selection import (
    SECOND_MODEL,
    SECOND_OPTIONS,
    second_model,
    with_the_crosses_of,
)
from twml_ops.training.trained_run import TrainedRun
from twml_ops.training.trials import run_trial, validation_parts

pytestmark = pytest.mark.usefixtures("bare_runs")

OPTIONS = ["--validation", "random", "--validation-share", "0.3", "--max-epochs", "1"]


def facts_of(folder):
    return json.loads((folder / "run.json").read_text())


def weights(folder):
    return np.concatenate([np.ravel(w) for w in TrainedRun(folder).model.get_weights()])


def write_ratings(path, n):
    """Users like the films of their own kind, which only pairs of a user and a film show."""
    rng = np.random.default_rng(0)
    users, films = rng.integers(30, size=(2, n))
    likes = (users % 3 == films % 3) ^ (rng.random(n) < 0.05)
    rows = [f"{int(y)},u{u},f{f}\n" for y, u, f in zip(likes, users, films, strict=True)]
    path.write_text("label,user,film\n" + "".join(rows))
    return f"csv:{path}"


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("data") / "ratings.csv", 3000)


@pytest.fixture(scope="module")
def run_of_ratings(ratings, tmp_path_factory):
    out = tmp_path_factory.mktemp("second") / "run"
    main(["train", "--data", ratings, "--eval", ratings, "--out", str(out), "--max-epochs", "6"])
    return out


def test_the_model_with_the_lower_loss_is_that_of_the_run(run_of_ratings):
    facts = facts_of(run_of_ratings)
    first, second = facts["model_choice"]["trials"]
    assert (first["model"], second["model"]) == ("dcn", SECOND_MODEL)
    crosses = first["model_options"]["crosses"]
    assert second["model_options"] == {**SECOND_OPTIONS, "trees": None, "crosses": crosses}
    best = (first, second)[min(second["losses"]) <= min(first["losses"])]
    assert facts["model_choice"]["best"] == int(best is second)
    for name in ("model", "model_options", "learning_rate"):
        assert facts[name] == best[name]
    assert facts["epoch_choice"]["log_loss"] == min(best["losses"])
    assert list(run_of_ratings.glob("tensorboard/second_model/validation/events*"))


def test_the_configuration_of_the_run_repeats_it_without_a_second_model(run_of_ratings, tmp_path):
    main(["train", "--config", str(run_of_ratings), "--out", str(tmp_path / "again")])
    assert facts_of(tmp_path / "again")["model_choice"] is None
    np.testing.assert_array_equal(weights(tmp_path / "again"), weights(run_of_ratings))


def test_a_run_that_is_continued_does_not_repeat_the_second_model(tmp_path, monkeypatch, capsys):
    data = write_ratings(tmp_path / "a.csv", 200)
    arguments = ["train", "--data", data, "--out", str(tmp_path / "run"), *OPTIONS]

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("twml_ops.training.selection.choose_epochs", interrupt)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            main(arguments)
    assert (tmp_path / "run.checkpoints" / "trials.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(selection, "run_trial", interrupt)
        main([*arguments, "--resume"])
    assert "second" in capsys.readouterr().out
    main([*arguments[:4], str(tmp_path / "whole"), *OPTIONS])
    np.testing.assert_array_equal(weights(tmp_path / "run"), weights(tmp_path / "whole"))


@pytest.mark.one_tf
def test_trees_beside_the_vectors_win_where_pairs_of_ids_decide(tmp_path):
    pytest.importorskip("lightgbm")
    columns, labels = film_ratings.generate(users=300, films=200, chosen=8000)
    data = f"csv:{write_files(tmp_path, 'films', columns, labels, film_ratings.TEST_SHARE)[0]}"
    source = open_source(data)
    crosses = {"crosses": ["user*film"]}
    default = RunConfig(data=data, model_options=crosses)
    second = with_the_crosses_of(second_model(default, source.schema), default)
    losses = []
    for options in (second.model_options, {**second.model_options, "trees": False}):
        config = dataclasses.replace(second, model_options=options)
        config = with_batch_size(config, source.num_examples(), True, second=True)
        losses.append(run_trial(config, validation_parts(config, source)).trial.log_loss)
    assert losses[0] < losses[1] - 0.01  # .513 and .533


@pytest.mark.parametrize(
    "options",
    [
        {"model": "dcn"},
        {"refit": False},
        {"from_run": "run"},
        {"storage": "tables"},
    ],
)
def test_some_runs_have_no_second_model(options, ratings):
    schema = open_source(ratings).schema
    assert second_model(RunConfig(data=ratings), schema) is not None
    assert second_model(RunConfig(data=ratings, **options), schema) is None


def test_pairs_need_two_categorical_features(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("label,a,n\n1,x,0.5\n0,y,1.5\n")
    source = open_source(f"csv:{path}")
    assert second_model(RunConfig(data=f"csv:{path}"), source.schema) is None
