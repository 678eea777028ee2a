"""`twml-ops train` with real readers and models, on small files."""

import gzip
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from tests.pairwise import on_both
from tests.trained_runs import train, write_criteo, write_libsvm
from twml_ops.analysis import scoring
from twml_ops.cli import main, reporter
from twml_ops.data import open_source, split_for_validation
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("bare_runs")

MODEL = ("--model", "sparse_mlp")
METRICS = [
    *("auc", "pr_auc", "log_loss", "normalized_entropy", "rce", "calibration"),
    *("examples_per_second", "examples", "seconds"),
]


@pytest.fixture(params=on_both(["libsvm_run", "criteo_run"], "criteo_run"))
def run(request):
    return request.getfixturevalue(request.param)


def test_folder_has_exactly_the_documented_files(run):
    schema = TrainedRun(run).schema
    assert sorted(p.name for p in run.iterdir()) == [
        *(["categories.npz"] if schema.categorical else []),
        *("metrics.json", "model.keras", "report.html", "run.json", "saved_model"),
        *(["statistics.npz"] if schema.categorical or schema.continuous else []),
        "tensorboard",
    ]
    assert list(run.glob("tensorboard/train/events*"))
    assert list(run.glob("tensorboard/validation/events*"))
    assert [p.name for p in run.parent.iterdir()] == [run.name]


def test_metrics_file_has_exactly_the_documented_keys(run):
    metrics = json.loads((run / "metrics.json").read_text())
    assert list(metrics) == METRICS
    assert all(np.isfinite(v) for v in metrics.values())
    assert metrics["examples"] == 2 * json.loads((run / "run.json").read_text())["train_examples"]


def test_training_learns(run):
    assert json.loads((run / "metrics.json").read_text())["auc"] > 0.7


def test_report_is_self_contained(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/svg+xml;base64,') == 4
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    for title in ("Learning curve", "Calibration", "Scores", "Permutation importance", "Run"):
        assert f"<h2>{title}</h2>" in page


def test_saved_model_and_keras_file_predict_the_same(run):
    trained = TrainedRun(run)
    features, _ = next(iter(trained.source(None).dataset(32)))
    want = trained.model(features).numpy()
    restored = tf.saved_model.load(str(run / "saved_model"))
    np.testing.assert_allclose(restored(features), want, rtol=1e-6)
    flat = {key: ragged.flat_values for key, ragged in features.items()}
    for key, ragged in features.items():
        flat[f"{key.split('_')[0]}_row_splits"] = ragged.row_splits
    served = restored.signatures["serving_default"](**flat)["probability"]
    np.testing.assert_allclose(served, want, rtol=1e-6)


def weights(folder):
    return np.concatenate([np.ravel(w) for w in TrainedRun(folder).model.get_weights()])


@pytest.mark.one_tf
def test_same_seed_gives_the_same_model_and_another_seed_another(libsvm, libsvm_run, tmp_path):
    again = train(libsvm, tmp_path / "again")
    other = train(libsvm, tmp_path / "other", "--seed", "1")
    np.testing.assert_array_equal(weights(again), weights(libsvm_run))
    assert not np.array_equal(weights(other), weights(libsvm_run))


@pytest.mark.one_tf
def test_without_a_terminal_the_output_is_a_few_plain_lines_with_the_phases_of_the_run(
    tmp_path, capsys
):
    run = train(write_libsvm(tmp_path / "a.svm", 200), tmp_path / "run")
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert "\r" not in out
    assert len(re.findall(r"^epoch \d/2 ", out, re.M)) == 2
    assert len(out.splitlines()) < 40
    facts = json.loads((run / "run.json").read_text())
    printed = re.findall(r"^time   (\D+) [\d,.]+ s$", out, re.M)
    assert printed == [*facts["phases"], "all together"]
    assert {"start", "reading", "model", "training", "evaluation", "export"} < {*printed}
    assert sum(facts["phases"].values()) <= facts["wall_seconds"] + 0.01  # all are rounded
    page = (run / "report.html").read_text(encoding="utf-8")
    for name in list(facts["phases"])[:-1]:  # all but the report
        assert f'<td class="key">{name}</td>' in page


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("total", "lines"), [(1000, [*range(10, 100, 10)]), (None, [*range(50, 1050, 50)])]
)
def test_a_long_pass_prints_a_line_at_each_tenth_if_no_terminal_shows_it(total, lines):
    file = io.StringIO()
    console = Console(file=file, width=120)
    with reporter.Bar(console, "epoch 1/2", total, line_seconds=0) as bar:
        for _ in range(20):
            bar.add(50, "loss 0.5")
    found = re.findall(
        r"^epoch 1/2: (\S+) (?:%|examples)   loss 0.5  .* ex/s$", file.getvalue(), re.M
    )
    assert found == [f"{n:,}" for n in lines]
    with reporter.Bar(console, "epoch 2/2", total) as bar:
        bar.add(1000)
    assert "epoch 2/2" not in file.getvalue()


@pytest.mark.one_tf
def test_one_class_only_is_trained_and_reported(tmp_path):
    (tmp_path / "a.svm").write_text("+1 1:1 2:1\n" * 50)
    out = train(f"libsvm:{tmp_path}/a.svm", tmp_path / "run")
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["auc"] is None
    assert metrics["rce"] is None


STOPPED = ["--validation", "random", "--max-epochs", "6", "--learning-rate", "0.3"]


@pytest.fixture(scope="module")
def stopped_run(libsvm, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "stopped"
    main(["train", "--data", libsvm, "--out", str(out), *STOPPED])
    return out


@pytest.mark.one_tf
def test_a_run_that_stopped_early_says_how(stopped_run):
    facts = json.loads((stopped_run / "run.json").read_text())
    choice = facts["epoch_choice"]
    assert facts["epochs"] is None
    assert facts["trained_epochs"] == choice["epochs"] <= 6
    assert choice["fit_examples"] + choice["validation_examples"] == 480 == facts["train_examples"]
    assert choice["validation_source"].endswith("(a random 0.1 of the examples)")
    metrics = json.loads((stopped_run / "metrics.json").read_text())
    assert [name for name in metrics if name not in METRICS] == ["validation_log_loss"]
    assert metrics["validation_log_loss"] == choice["log_loss"]
    page = (stopped_run / "report.html").read_text(encoding="utf-8")
    for title in ("Choice of the number of epochs", "Learning curve"):
        assert f"<h2>{title}</h2>" in page
    assert f"after epoch {choice['epochs']}: {choice['log_loss']:.4f}" in page
    assert list(stopped_run.glob("tensorboard/early_stopping/validation/events*"))


@pytest.mark.one_tf
def test_the_model_after_early_stopping_is_that_of_the_chosen_number_of_epochs(
    stopped_run, libsvm, tmp_path
):
    epochs = json.loads((stopped_run / "run.json").read_text())["trained_epochs"]
    options = ["--epochs", str(epochs), "--learning-rate", "0.3"]
    main(["train", "--data", libsvm, "--out", str(tmp_path / "run"), *options])
    np.testing.assert_array_equal(weights(stopped_run), weights(tmp_path / "run"))


@pytest.mark.one_tf
def test_without_a_refit_the_model_has_the_lowest_validation_loss(libsvm, tmp_path):
    main(["train", "--data", libsvm, "--out", str(tmp_path / "run"), *STOPPED, "--no-refit"])
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    choice = facts["epoch_choice"]
    assert facts["train_examples"] == choice["fit_examples"] < 480
    train_part, _ = open_source(libsvm).split()
    _, validation = split_for_validation(train_part, "random", 0.1)
    scores = scoring.score(TrainedRun(tmp_path / "run").model, validation.dataset(64))
    assert scoring.metrics(scores)["log_loss"] == pytest.approx(choice["log_loss"], rel=1e-4)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "The model has the weights of that epoch." in page


@pytest.mark.one_tf
def test_few_examples_are_trained_for_a_fixed_number_of_epochs(tmp_path):
    out = tmp_path / "run"
    main(["train", "--data", write_libsvm(tmp_path / "a.svm", 200), "--out", str(out)])
    facts = json.loads((out / "run.json").read_text())
    assert facts["epoch_choice"] is None
    assert facts["trained_epochs"] == 4


@pytest.mark.one_tf
def test_a_configuration_repeats_a_run_bit_for_bit(libsvm, tmp_path):
    options = [*MODEL, "--epochs", "1", "--set", "units=8", "--set", "hidden=8,4", "--seed", "3"]
    main(["train", "--data", libsvm, "--out", str(tmp_path / "a"), *options])
    main(["train", "--config", str(tmp_path / "a" / "run.json"), "--out", str(tmp_path / "b")])
    np.testing.assert_array_equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in "ab"]
    assert runs[1]["model_options"] == {"units": 8, "hidden": [8, 4]}
    for name in ("command", "finished", "phases", "wall_seconds"):
        for run in runs:
            del run[name]
    assert runs[0] == runs[1]


def test_a_model_of_the_user_is_trained_and_read_again(tmp_path):
    data, out = write_criteo(tmp_path / "c.tsv", 200), tmp_path / "run"
    model = f"{Path(__file__).parents[2]}/examples/own_model.py:build"
    options = ["--epochs", "1", "--model", model, "--set", "units=3"]
    main(["train", "--data", data, "--out", str(out), *options])
    trained = TrainedRun(out)
    assert trained.facts["model"] == model
    assert any(3 in w.shape for w in trained.model.get_weights())
    features, _ = next(iter(trained.source(None).dataset(32)))
    assert trained.model({"categorical_ids": features["categorical_ids"]}).shape == (32, 1)


@pytest.mark.one_tf
def test_after_training_on_some_negatives_the_probabilities_are_those_of_all_examples(tmp_path):
    data = write_libsvm(tmp_path / "a.svm", 4000)
    options = [*MODEL, "--epochs", "3", "--negative-rate", "0.2", "--learning-rate", "0.1"]
    main(["train", "--data", data, "--out", str(tmp_path / "run"), *options])
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["train_source"].endswith("(a random 0.2 of the negatives)")
    assert facts["train_examples"] < 2600
    model = TrainedRun(tmp_path / "run").model
    sampled = tf.keras.Model(model.input, model.get_layer("probability").output)
    _, held_out = open_source(data).split()
    ratios = [
        scoring.metrics(scoring.score(m, held_out.dataset(64)))["calibration"]
        for m in (sampled, model)
    ]
    assert ratios[0] > 1.2
    assert abs(ratios[1] - 1) < 0.15


def good(folder):
    return write_libsvm(folder / "good.svm", 64)


def truncated(folder):
    write_criteo(folder / "whole.tsv", 400)
    packed = gzip.compress((folder / "whole.tsv").read_bytes())
    (folder / "c.tsv.gz").write_bytes(packed[: len(packed) // 2])
    return f"criteo:{folder}/c.tsv.gz"


def twelve_columns(folder):
    write_criteo(folder / "c.tsv", 20)
    with (folder / "c.tsv").open("a") as file:
        file.write("\t".join("1" * 12) + "\n")
    return f"criteo:{folder}/c.tsv"


def libsvm_with(line):
    def write(folder):
        (folder / "bad.svm").write_text("+1 1:1\n-1 2:1\n" * 20 + line + "\n" + "+1 1:1\n" * 20)
        return f"libsvm:{folder}/bad.svm"

    return write


WRONG = {
    "missing file": (lambda folder: f"criteo:{folder}/none.tsv", [], "none.tsv"),
    "truncated gzip": (truncated, [], "truncated"),
    "twelve columns": (twelve_columns, [], "line 21: expected 40 TAB-separated columns, got 12"),
    "index zero": (libsvm_with("+1 0:1"), [], "line 41: indices start at 1, got '0:1'"),
    "id beyond dim": (
        lambda folder: libsvm_with("+1 99:1")(folder) + "?dim=50",
        [],
        "line 41: the index must be at most 50",
    ),
    "nan": (libsvm_with("+1 3:nan"), [], "line 41"),
    "unknown source": (lambda folder: "paper:x", [], "unknown source"),
    "model": (good, ["--model", "nosuch"], "unknown model 'nosuch'"),
    "optimizer": (good, ["--optimizer", "nosuch"], "unknown optimizer 'nosuch'"),
    "set": (
        good,
        [*MODEL, "--set", "unit=3"],
        "sparse_mlp has no such option; its options are units=32",
    ),
    "learning rate": (good, ["--learning-rate", "nan"], "--learning-rate must be"),
    "loss": (good, ["--optimizer", "sgd", "--learning-rate", "1e30"], "the loss became"),
    "epochs": (good, ["--validation", "random"], "--epochs fixes the number of epochs"),
    "usage": (good, ["--epochs", "0"], "--epochs"),
    "option": (good, ["--nosuch"], "--nosuch"),
}


@pytest.mark.one_tf
@pytest.mark.parametrize("case", WRONG)
def test_an_error_of_the_user_is_one_line_and_leaves_no_folder(tmp_path, capfd, case):
    data, options, message = WRONG[case]
    source = data(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as exit_:
        train(source, tmp_path / "run", *options)
    _, err = capfd.readouterr()
    assert exit_.value.code in (1, 2)
    assert err.count("\n") == 1, err
    assert err.startswith("twml-ops: ")
    assert message in err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.one_tf
def test_id_beyond_the_training_id_space_is_one_line(tmp_path, capfd):
    (tmp_path / "big.svm").write_text("+1 1:1\n-1 77:1\n")
    with pytest.raises(SystemExit):
        train(good(tmp_path), tmp_path / "run", "--eval", f"libsvm:{tmp_path}/big.svm")
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "line 2" in err
    assert "77:1" in err


def test_a_folder_that_is_not_a_run_is_not_overwritten(tmp_path, capfd):
    source = good(tmp_path)
    with pytest.raises(SystemExit):
        train(source, tmp_path, "--overwrite")
    assert "not a finished run" in capfd.readouterr().err
    assert open_source(source).num_examples() == 64


def test_debug_shows_the_traceback(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("twml_ops.cli.errors._Debug.on", False)
    with pytest.raises(SystemExit):
        main(["train", "--data", "paper:x", "--out", str(tmp_path / "run"), "--debug"])
    err = capfd.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("twml-ops: unknown source")


@pytest.mark.one_tf
def test_a_schema_file_tells_the_uses_of_the_columns(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = [f"{i % 2},{rng.integers(9)},{'ab'[i % 2]}|c,{rng.random():.3f}" for i in range(300)]
    (tmp_path / "a.csv").write_text("\n".join(["bought,shop,tags,importance", *lines]) + "\n")
    (tmp_path / "features.yaml").write_text(
        "features: [{name: shop, kind: categorical}, {name: tags, kind: bag}]\n"
        "labels: [bought]\nweight: importance\n"
    )
    data, schema = f"csv:{tmp_path / 'a.csv'}", str(tmp_path / "features.yaml")
    options = ("--schema", schema, "--model", "logistic")
    run = train(data, tmp_path / "run", *options)
    trained = TrainedRun(run)
    assert trained.facts["schema_file"] == schema
    assert trained.schema.bags == ("tags",)
    assert trained.schema.weight == "importance"
    assert json.loads((run / "metrics.json").read_text())["auc"] > 0.7
    main(["predict", str(run), "--data", data])
    again = tmp_path / "again"
    main(["train", "--config", str(run), "--out", str(again)])
    assert TrainedRun(again).schema == trained.schema
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train("flights", tmp_path / "other", "--schema", schema)
    assert "takes no schema" in capsys.readouterr().err
