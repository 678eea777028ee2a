"""The commands on data with several labels, from training to raw columns in exported models."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.cli import main
from twml_ops.core import Scorer
from twml_ops.data import open_source, split_for_validation
from twml_ops.training.run_folder import SLOTS
from twml_ops.training.trained_run import TrainedRun

# On both TensorFlows: tests/models/test_labels.py.
pytestmark = [pytest.mark.one_tf, pytest.mark.usefixtures("bare_runs")]

LABELS = ["bought", "clicked"]
LOGISTIC = ("--model", "logistic", "--epochs", "1")
METRICS = ("auc", "pr_auc", "log_loss", "normalized_entropy", "rce", "calibration")
SCHEMA = """
features:
  - {kind: continuous, name: age}
  - {kind: categorical, name: city}
  - {kind: categorical, name: device}
labels: [clicked, bought]
weight: w
"""


def write_rows(path, n, seed=0):
    """Rows with missing values whose labels depend on the city and on the age."""
    rng = np.random.default_rng(seed)
    city, age = rng.integers(0, 5, n), rng.integers(18, 70, n)
    logit = city - 2 + (age - 44) / 20
    clicked, bought = (rng.random(n) < 1 / (1 + np.exp(-logit + bias)) for bias in (0.5, 1.5))
    lines = ["clicked,bought,age,city,device,w"]
    for i in range(n):
        shown = [f"{age[i]}", f"c{city[i]}", "ab"[i % 2]]
        shown = [text if rng.random() < 0.95 else "" for text in shown]
        lines.append(",".join([f"{clicked[i]:d}", f"{bought[i]:d}", *shown, f"{1 + i % 3}"]))
    path.write_text("\n".join(lines) + "\n")
    return f"csv:{path}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    write_rows(folder / "a.csv", 800)
    write_rows(folder / "b.csv", 300, seed=1)
    (folder / "schema.yaml").write_text(SCHEMA)
    return folder


def train(folder, out, *options):
    command = ["train", "--data", f"csv:{folder}/a.csv", "--schema", f"{folder}/schema.yaml"]
    main([*command, "--out", str(out), *options])
    return out


@pytest.fixture(scope="module")
def run(folder):
    options = ["--validation", "random", "--max-epochs", "3", "--validation-share", "0.3"]
    return train(folder, folder / "run", "--model", "shared_bottom", *options)


def metrics_of(run):
    return json.loads((run / "metrics.json").read_text())


def test_each_label_has_metrics_and_the_others_are_their_means(run):
    metrics = metrics_of(run)
    assert sorted(metrics["labels"]) == LABELS
    for name in METRICS:
        found = [metrics["labels"][label][name] for label in LABELS]
        assert metrics[name] == pytest.approx(np.mean(found), rel=1e-12)
    assert all(metrics["labels"][label]["auc"] > 0.65 for label in LABELS)


def test_training_stops_by_the_mean_of_the_weighted_losses(folder, tmp_path):
    options = ["--validation", "random", "--max-epochs", "2", "--validation-share", "0.3"]
    run = train(folder, tmp_path / "run", "--model", "mmoe", "--no-refit", *options)
    trained = TrainedRun(run)
    data = open_source(f"csv:{folder}/a.csv", like=trained.schema).split()[0]
    validation = split_for_validation(data, "random", 0.3).validation
    scores = scoring.score_labels(trained.model, validation.dataset(64, layout="fields"), LABELS)
    mean = np.mean([scoring.metrics(scores[label])["log_loss"] for label in LABELS])
    choice = json.loads((run / "run.json").read_text())["epoch_choice"]
    assert choice["log_loss"] == pytest.approx(mean, rel=1e-4)


def test_the_report_shows_each_label(run, capsys):
    page = (run / "report.html").read_text()
    for label in LABELS:
        for title in ("Calibration", "Scores", "Lift"):
            assert f"<h2>{title} of {label}</h2>" in page
        assert f"<th>{label}</th>" in page
    assert "<h2>Lift</h2>" not in page
    main(["info", str(run)])
    assert re.search(r"clicked auc +0\.\d+", capsys.readouterr().out)


def test_evaluation_and_predictions_are_by_label(folder, run, tmp_path, capsys):
    main(["evaluate", str(run), "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["labels"]["bought"] == pytest.approx(metrics_of(run)["labels"]["bought"], rel=1e-5)
    lines = (folder / "b.csv").read_text().splitlines()
    unlabeled = [",".join(line.split(",")[2:5]) for line in lines]
    (tmp_path / "u.csv").write_text("\n".join(unlabeled) + "\n")
    main(["predict", str(run), "--data", f"csv:{tmp_path}/u.csv"])
    rows = np.array([line.split("\t") for line in capsys.readouterr().out.splitlines()], float)
    source = open_source(f"csv:{folder}/b.csv", like=TrainedRun(run).schema)
    (batch,) = source.dataset(300, layout="fields")
    want = TrainedRun(run).model(batch[0], training=False)
    for i, label in enumerate(("clicked", "bought")):
        np.testing.assert_allclose(rows[:, i], want[label].numpy()[:, 0], rtol=1e-5)
    main(["predict", str(run), "--data", f"csv:{folder}/b.csv", "--keep", "clicked"])
    header, *lines = (line.split(",") for line in capsys.readouterr().out.splitlines())
    assert header == ["clicked", "prediction_clicked", "prediction_bought"]
    np.testing.assert_array_equal(np.array(lines, float)[:, 1:], rows)


def test_a_configuration_repeats_a_run_bit_for_bit(run, tmp_path):
    main(["train", "--config", str(run), "--out", str(tmp_path / "again")])
    models = [TrainedRun(folder).model for folder in (run, tmp_path / "again")]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)


RAW = {
    "age": np.array([30.0, np.nan, 1e9], np.float32),
    "city": np.array(["c1", "", "never seen"]),
    "device": np.array(["a", "b", ""]),
}


@pytest.mark.parametrize("method", [None, "platt"])
def test_raw_columns_give_the_same_probabilities_in_every_export(folder, run, tmp_path, method):
    if method:
        data = ["--data", f"csv:{folder}/b.csv", "--eval", f"csv:{folder}/a.csv"]
        out = tmp_path / "calibrated"
        main(["calibrate", str(run), *data, "--method", method, "--out", str(out)])
        run = out
    (tmp_path / "raw.csv").write_text(
        "clicked,bought,age,city,device,w\n1,0,30,c1,a,1\n0,0,,,b,1\n0,1,1e9,never seen,,2\n"
    )
    source = open_source(f"csv:{tmp_path}/raw.csv", like=TrainedRun(run).schema)
    (batch,) = source.dataset(3, layout="fields")
    want = {k: v.numpy() for k, v in TrainedRun(run).model(batch[0], training=False).items()}
    for kind in ("stock", "scorer"):
        main(["export", str(run), str(tmp_path / kind), "--format", kind])
    raw = tf.saved_model.load(str(tmp_path / "stock")).signatures["raw"]
    got = raw(**{name: tf.constant(column) for name, column in RAW.items()})
    scorer = Scorer.load(str(tmp_path / "scorer")).predict(RAW)
    assert sorted(got) == sorted(scorer) == sorted(want) == LABELS
    for label in LABELS:
        np.testing.assert_allclose(got[label], want[label], rtol=1e-5)
        np.testing.assert_allclose(scorer[label], want[label], rtol=1e-5)


def test_a_calibration_is_fitted_for_each_label(folder, run, tmp_path, capsys):
    data = ["--data", f"csv:{folder}/b.csv", "--eval", f"csv:{folder}/a.csv"]
    main(["calibrate", str(run), *data, "--method", "platt", "--out", str(tmp_path / "out")])
    assert re.search(r"before +after +\w+ before +\w+ after", capsys.readouterr().out)
    page = (tmp_path / "out" / "report.html").read_text()
    for label in LABELS:
        assert f"<h2>Reliability of {label} before and after the calibration</h2>" in page
    intercepts = [
        float(layer.state_variables[1].numpy()[0])
        for layer in TrainedRun(tmp_path / "out").model.layers
        if layer.name.startswith("calibration")
    ]
    assert len(set(intercepts)) == 2


def test_an_ensemble_has_the_mean_of_each_label(folder, tmp_path):
    run = train(folder, tmp_path / "run", *LOGISTIC, "--ensemble", "2")
    source = open_source(f"csv:{folder}/b.csv", like=TrainedRun(run).schema)
    (batch,) = source.dataset(300, layout="fields")
    model = TrainedRun(run).model
    members = [member(batch[0]) for member in models.ensemble_members(model)]
    for label, mean in model(batch[0]).items():
        np.testing.assert_allclose(mean, (members[0][label] + members[1][label]) / 2, rtol=1e-5)


def test_a_run_goes_on_with_the_slots_of_its_optimizer_and_publishes_each_label(folder, tmp_path):
    run = train(folder, tmp_path / "run", *LOGISTIC, "--save-slots")
    again = ["train", "--from", str(run), "--data", f"csv:{folder}/b.csv", "--epochs", "1"]
    main([*again, "--out", str(tmp_path / "with"), "--publish", str(tmp_path / "served")])
    (run / SLOTS).rename(tmp_path / "slots")
    main([*again, "--out", str(tmp_path / "without")])
    slow, fast = (
        np.concatenate([w.ravel() for w in TrainedRun(tmp_path / name).model.get_weights()])
        for name in ("with", "without")
    )
    start = np.concatenate([w.ravel() for w in TrainedRun(run).model.get_weights()])
    assert np.linalg.norm(slow - start) < np.linalg.norm(fast - start)  # Adagrad's sums go on
    newest = max((tmp_path / "served").iterdir(), key=lambda version: int(version.name))
    assert sorted(Scorer.load(newest).predict(RAW)) == LABELS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--positive-weight", "2"], "--positive-weight needs one label"),
        (["--negative-rate", "0.5"], "--negative-rate needs one label"),
    ],
)
def test_options_of_one_label_are_refused_by_name(folder, tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        train(folder, tmp_path / "run", *options)
    assert re.search(f"{message}.* has clicked, bought", capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
