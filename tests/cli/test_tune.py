"""`twml-ops tune` with Optuna, on small files."""

import json
import re

import pytest

from tests.trained_runs import write_libsvm
from twml_ops.cli import main

pytestmark = pytest.mark.usefixtures("bare_runs")

pytest.importorskip("optuna")

VALIDATION = ["--validation", "random", "--validation-share", "0.3"]
MODEL = """
import tensorflow as tf
from twml_ops.layers import SparseLinear

def build(schema, dataset, *, stddev: float = 0.1, l2: float = 0.0, dropout: float = 0.0):
    names = {"sparse_ids": "int64", "sparse_values": "float32"}
    inputs = {n: tf.keras.Input((None,), ragged=True, dtype=t, name=n) for n, t in names.items()}
    kernel = tf.keras.initializers.RandomNormal(stddev=stddev)
    linear = SparseLinear(1, schema.sparse_dim, activation="sigmoid", kernel_initializer=kernel)
    return tf.keras.Model(inputs, linear(list(inputs.values())))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of the user that is built and traced quickly."""
    file = tmp_path_factory.mktemp("model") / "m.py"
    file.write_text(MODEL)
    return f"{file}:build"


def tune(data, model, out, *options):
    arguments = ["--data", data, "--model", model, "--out", str(out), "--set", "dropout=0.25"]
    main(["tune", *arguments, *VALIDATION, *options])
    return json.loads(out.read_text())


def losses_of(shown):
    """The loss of each trial in the printed table; None if it did not finish."""
    rows = re.findall(r"^ *\d+  (\S+) +\d+ +[\d.]+  \S+:build", shown, re.M)
    return [None if row in ("stopped", "failed") else float(row) for row in rows]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_libsvm(tmp_path_factory.mktemp("data") / "a.svm", 200)


@pytest.fixture(scope="module")
def tuned(data, model, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "best.json"
    return out, tune(data, model, out, "--trials", "3", "--max-epochs", "2")


def test_the_same_seed_finds_the_same_options_and_the_lowest_loss_wins(
    data, model, tuned, tmp_path, capsys
):
    again = tune(data, model, tmp_path / "b.json", "--trials", "3", "--max-epochs", "2")
    assert again == tuned[1]
    shown = capsys.readouterr().out
    losses = losses_of(shown)
    assert len(losses) == 3
    (best,) = (i for i, loss in enumerate(losses) if loss == min(losses))
    row = next(line for line in shown.splitlines() if line.startswith(f"{best + 1:>4}  "))
    assert f"learning_rate={again['learning_rate']:.4g} " in row
    assert f"stddev={again['model_options']['stddev']:.4g} " in row


def test_train_takes_the_result_and_has_its_validation_loss(tuned, tmp_path, capsys):
    file, config = tuned
    main(["train", "--config", str(file), "--out", str(tmp_path / "run")])
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    for name in ("data", "model", "model_options", "learning_rate", "seed", "validation"):
        assert facts[name] == config[name]
    assert facts["model_options"]["dropout"] == 0.25


def test_bad_trials_are_pruned(data, model, tmp_path, capsys):
    tune(data, model, tmp_path / "b.json", "--trials", "8", "--max-epochs", "3", "--patience", "3")
    assert "stopped" in capsys.readouterr().out


def test_the_first_trial_has_the_defaults_and_the_time_limit_ends_the_search(
    data, model, tmp_path, capsys
):
    config = tune(data, model, tmp_path / "b.json", "--time-limit", "0", "--max-epochs", "1")
    assert len(losses_of(capsys.readouterr().out)) == 1
    assert config["learning_rate"] == pytest.approx(0.04)
    assert config["model_options"] == {"dropout": 0.25, "stddev": 0.1, "l2": 0.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "auto"], "--model auto: tune searches the options of one model"),
        (["--validation", "none"], "tune needs validation data"),
        (["--model", "nosuch"], "unknown model"),
        (["--out", "{tmp}"], "is a folder"),
        (["--validation", "auto", "--validation-share", "0.1"], "there are no validation data"),
        (["--learning-rate", "1e30", "--optimizer", "sgd", "--trials", "1"], "every trial failed"),
    ],
)
def test_an_error_is_one_line_and_writes_nothing(data, tmp_path, capsys, options, message):
    options = [option.replace("{tmp}", str(tmp_path)) for option in options]
    with pytest.raises(SystemExit):
        main(["tune", "--data", data, "--out", str(tmp_path / "b.json"), *VALIDATION, *options])
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
