"""`twml-ops train --from`: a run goes on where another one has ended, with other data."""

import json
import shutil

import numpy as np
import pytest

from tests.trained_runs import write_criteo, write_libsvm
from twml_ops import models
from twml_ops.checkpoint import CheckpointManager
from twml_ops.cli import main
from twml_ops.training.trained_run import TrainedRun

# On both TensorFlows: tests/checkpoint/test_variables.py.
pytestmark = [pytest.mark.one_tf, pytest.mark.usefixtures("bare_runs")]

MODEL = ("--model", "sparse_mlp", "--set", "units=4")
OPTIONS = ["--epochs", "1", "--batch-size", "64", "--checkpoint-every", "0"]


def train(data, out, *options):
    main(["train", "--data", data, "--out", str(out), *OPTIONS, *options])
    return TrainedRun(out)


def weights(run):
    """The weights by position and name; Keras 2 renames the tables of a loaded model."""
    return {(i, w.name.split("/")[-1]): np.array(w) for i, w in enumerate(run.model.weights)}


def log_loss(out):
    return json.loads((out / "metrics.json").read_text())["log_loss"]


@pytest.fixture(scope="module")
def day_1(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm")
    data = write_libsvm(folder / "1.svm", 600, seed=1)
    train(data, folder / "run", "--learning-rate", "0.3", "--save-slots", *MODEL)
    return folder / "run"


def test_the_weights_of_the_run_are_the_start(day_1, tmp_path):
    data = write_libsvm(tmp_path / "2.svm", 200, seed=2)
    run = train(data, tmp_path / "run", "--from", str(day_1), "--learning-rate", "1e-30")
    before, after = weights(TrainedRun(day_1)), weights(run)
    for name in before:
        if "max_abs" not in name[1]:
            np.testing.assert_array_equal(after[name], before[name])
    facts = run.facts
    assert (facts["from_run"], facts["batch_size"]) == (str(day_1), 64)
    assert (facts["model_options"], facts["eval"]) == ({"units": 4}, None)


def test_the_statistics_of_layers_go_on(day_1, tmp_path):
    data = write_libsvm(tmp_path / "2.svm", 200, seed=2)
    larger = tmp_path / "larger.svm"
    larger.write_text((tmp_path / "2.svm").read_text().replace(" 1:", " 1:9"))
    run = train(f"libsvm:{larger}", tmp_path / "run", "--from", str(day_1))
    before, after = (
        r.model.get_layer("sparse_norm").get_weights() for r in (TrainedRun(day_1), run)
    )
    changed = [a.max() > 9 for a in after if a.shape == (8,)]
    assert any(changed)
    assert all(a.max() < 9 for a in before)
    assert data


def test_a_start_from_a_run_is_better_than_none(day_1, tmp_path):
    data = write_libsvm(tmp_path / "2.svm", 200, seed=2)
    train(data, tmp_path / "warm", "--from", str(day_1))
    train(data, tmp_path / "cold", "--learning-rate", "0.3", *MODEL)
    assert log_loss(tmp_path / "warm") < log_loss(tmp_path / "cold")


def test_saved_slots_are_those_of_the_next_run(day_1, tmp_path):
    data = write_libsvm(tmp_path / "2.svm", 200, seed=1)
    # A rate that changes nothing: the second run begins with the slots of the first, and they grow.
    run = train(data, tmp_path / "run", "--from", str(day_1), "--learning-rate", "1e-30")
    assert run.facts["save_slots"]
    first, second = slots(day_1), slots(tmp_path / "run")
    assert second.pop("step") == first.pop("step") + 3  # batches of the 160 examples
    assert first.keys() == second.keys()
    for name, before in first.items():
        assert (second[name] >= before).all(), name
        assert (before > 1.01e-5).any(), name  # above where they begin
        assert (second[name] > before).any(), name


def test_damaged_slots_are_an_error_and_another_optimizer_needs_none(day_1, tmp_path, capsys):
    data, damaged = write_libsvm(tmp_path / "2.svm", 200), tmp_path / "damaged"
    shutil.copytree(day_1, damaged)
    manifest = next((damaged / "optimizer").glob("ckpt-*/manifest.json"))
    manifest.write_text(manifest.read_text()[:-9])
    with pytest.raises(SystemExit):
        train(data, tmp_path / "run", "--from", str(damaged))
    assert "optimizer: has no valid slots of the optimizer" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    other = ["--from", str(damaged), "--optimizer", "sgd", "--no-save-slots"]
    train(data, tmp_path / "run", *other)
    assert not (tmp_path / "run" / "optimizer").exists()


def slots(run):
    checkpoint = CheckpointManager(run / "optimizer").latest()
    values = {name: checkpoint.read(name) for name in checkpoint.entries}
    labels = {name: e.label for name, e in checkpoint.entries.items()}
    found = {name: v for name, v in values.items() if v.ndim}
    assert found
    assert not any("learning_rate" in label for label in labels.values())
    return {"step": checkpoint.manifest.step, **found}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ensemble", "2"], "--save-slots: an ensemble has several optimizers"),
        (["--negative-rate", "0.5"], "--save-slots: a run with --negative-rate cannot be"),
    ],
)
def test_slots_that_nobody_can_use_are_not_saved(tmp_path, capsys, options, message):
    data = write_libsvm(tmp_path / "1.svm", 200)
    with pytest.raises(SystemExit):
        train(data, tmp_path / "run", "--save-slots", *options)
    assert message in capsys.readouterr().err


def test_a_chain_of_runs_can_be_repeated(day_1, tmp_path):
    data = write_libsvm(tmp_path / "2.svm", 200, seed=2)
    first = train(data, tmp_path / "a", "--from", str(day_1))
    main(["train", "--config", str(tmp_path / "a"), "--out", str(tmp_path / "b")])
    for mine, theirs in zip(
        weights(TrainedRun(tmp_path / "b")).values(), weights(first).values(), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_a_model_on_fields_keeps_its_rows(fields_run, tmp_path):
    data = write_criteo(tmp_path / "2.tsv", 300, seed=2)
    run = train(data, tmp_path / "run", "--from", str(fields_run))
    before, after = (r.model.get_layer("categories") for r in (TrainedRun(fields_run), run))
    assert after.num_rows == before.num_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "fm"], "--from: the run determines the model, got --model as well"),
        (["--set", "units=3"], "--from: the run determines the model, got --set as well"),
        (["--config", "x.json"], "--from: the run determines the model, got --config as well"),
    ],
)
def test_what_the_run_decides_cannot_be_chosen(day_1, tmp_path, capsys, options, message):
    data = write_libsvm(tmp_path / "2.svm", 200)
    with pytest.raises(SystemExit):
        train(data, tmp_path / "run", "--from", str(day_1), *options)
    assert message in capsys.readouterr().err


def test_other_features_are_refused(day_1, tmp_path, capsys):
    wide = write_libsvm(tmp_path / "wide.svm", 200, dim=12)
    other = write_criteo(tmp_path / "other.tsv", 200)
    for data, message in (
        (wide, "the index must be at most 8, the size of the training data's id space"),
        (other, "adds continuous features to the features of the training data: I1, I10"),
    ):
        with pytest.raises(SystemExit):
            train(data, tmp_path / "run", "--from", str(day_1))
        error = capsys.readouterr().err
        assert error.startswith("twml-ops: ")
        assert message in error
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_and_missing_data_are_named(day_1, tmp_path, capsys):
    data = write_libsvm(tmp_path / "2.svm", 200)
    with pytest.raises(SystemExit):
        train(data, tmp_path / "run", "--from", str(tmp_path))
    assert "run.json" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--from", str(day_1), "--out", str(tmp_path / "run")])
    assert "--data is missing" in capsys.readouterr().err


def test_a_corrected_run_is_refused(tmp_path, capsys):
    data = write_libsvm(tmp_path / "1.svm", 300)
    train(data, tmp_path / "run", "--negative-rate", "0.5")
    with pytest.raises(SystemExit):
        train(data, tmp_path / "next", "--from", str(tmp_path / "run"))
    assert "its model ends in a correction for --negative-rate" in capsys.readouterr().err


def with_new_tokens(path, n, seed):
    """Criteo lines as of `write_criteo`, in which C2 has tokens that it had not before."""
    source = write_criteo(path, n, seed)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    for number, fields in enumerate(lines):
        fields[15] = f"{7000 + number % 6:08x}"
    path.write_text("\n".join("\t".join(fields) for fields in lines) + "\n")
    return source


def test_new_categories_get_rows_and_new_slots(fields_run, tmp_path):
    data = write_criteo(tmp_path / "1.tsv", 300, seed=2)
    frozen = ("--save-slots", "--learning-rate", "1e-30")
    first = train(data, tmp_path / "a", "--from", str(fields_run), *frozen)
    new = with_new_tokens(tmp_path / "2.tsv", 300, seed=3)
    second = train(new, tmp_path / "b", "--from", str(tmp_path / "a"), *frozen)
    sizes = [np.array(r.model.get_layer("categories").num_rows) for r in (first, second)]
    assert (sizes[1] - sizes[0])[1] == 6
    tables = models.enlarged_tables(first.model, second.model)
    for table in tables:
        before, after = table.before.numpy(), table.after.numpy()
        np.testing.assert_array_equal(after[table.rows], before)
    before, after = slots(tmp_path / "a"), slots(tmp_path / "b")
    assert before.pop("step") < after.pop("step")
    wider = [n for n in before if before[n].shape != after[n].shape]
    assert len(wider) == len(tables)
    rows = {t.before.shape[0]: t.rows for t in tables}
    for name in wider:
        old = rows[len(before[name])]
        assert (after[name][old] >= before[name]).all()
        added = np.setdiff1d(np.arange(len(after[name])), old)
        assert (after[name][added] < before[name].max()).all()


def test_rows_stay_as_they_are_if_that_is_asked_for(fields_run, tmp_path):
    new = with_new_tokens(tmp_path / "2.tsv", 300, seed=3)
    run = train(new, tmp_path / "b", "--from", str(fields_run), "--no-new-categories")
    sizes = [r.model.get_layer("categories").num_rows for r in (TrainedRun(fields_run), run)]
    assert sizes[0] == sizes[1]
    assert run.facts["new_categories"] is False
