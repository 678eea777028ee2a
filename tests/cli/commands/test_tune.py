"""`twml-ops tune` with Optuna, on small files."""

import json
import re

import pytest

from tests.cli.conftest import write_libsvm
from twml_ops.cli import main

pytest.importorskip("optuna")

FAST = ["--model", "sparse_mlp", "--set", "hidden=4"]
FAST += ["--validation", "random", "--validation-share", "0.3"]


def tune(data, out, *options):
    main(["tune", "--data", data, "--out", str(out), *FAST, *options])
    return json.loads(out.read_text())


def losses_of(shown):
    """The loss of each trial in the printed table; None if it did not finish."""
    rows = re.findall(r"^ *\d+  (\S+) +\d+ +[\d.]+  sparse_mlp", shown, re.M)
    return [None if row in ("stopped", "failed") else float(row) for row in rows]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_libsvm(tmp_path_factory.mktemp("data") / "a.svm", 200)


@pytest.fixture(scope="module")
def tuned(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "best.json"
    return out, tune(data, out, "--trials", "3", "--max-epochs", "2")


def test_the_same_seed_finds_the_same_options_and_the_lowest_loss_wins(
    data, tuned, tmp_path, capsys
):
    again = tune(data, tmp_path / "b.json", "--trials", "3", "--max-epochs", "2")
    assert again == tuned[1]
    shown = capsys.readouterr().out
    losses = losses_of(shown)
    assert len(losses) == 3
    (best,) = (i for i, loss in enumerate(losses) if loss == min(losses))
    row = next(line for line in shown.splitlines() if line.startswith(f"{best + 1:>4}  "))
    assert f"learning_rate={again['learning_rate']:.4g} " in row
    assert f"units={again['model_options']['units']} " in row


def test_train_takes_the_result_and_has_its_validation_loss(tuned, tmp_path, capsys):
    file, config = tuned
    main(["train", "--config", str(file), "--out", str(tmp_path / "run")])
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    for name in ("data", "model", "model_options", "learning_rate", "seed", "validation"):
        assert facts[name] == config[name]
    assert facts["model_options"]["hidden"] == [4]


def test_bad_trials_are_pruned(data, tmp_path, capsys):
    tune(data, tmp_path / "b.json", "--trials", "9", "--max-epochs", "4", "--patience", "4")
    assert "stopped" in capsys.readouterr().out


def test_the_first_trial_has_the_defaults_and_the_time_limit_ends_the_search(
    data, tmp_path, capsys
):
    config = tune(data, tmp_path / "b.json", "--time-limit", "0", "--max-epochs", "1")
    assert len(losses_of(capsys.readouterr().out)) == 1
    assert config["learning_rate"] == pytest.approx(0.04)
    assert config["model_options"]["units"] == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "auto"], "--model auto: tune searches the options of one model"),
        (["--validation", "none"], "tune needs validation data"),
        (["--model", "nosuch"], "unknown model"),
        (["--out", "{tmp}"], "exists"),
        (["--validation", "auto"], "there are no validation data"),
        (["--learning-rate", "1e30", "--optimizer", "sgd", "--trials", "1"], "every trial failed"),
    ],
)
def test_an_error_is_one_line_and_writes_nothing(data, tmp_path, capsys, options, message):
    options = [option.replace("{tmp}", str(tmp_path)) for option in options]
    with pytest.raises(SystemExit):
        main(["tune", "--data", data, "--out", str(tmp_path / "b.json"), *options])
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
