"""`twml-ops train --storage`: runs whose large tables have their rows in files."""

import gc
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.trained_runs import whole_runs
from tests.training.test_checkpoints import run_here, run_steps
from twml_ops import layers, placement
from twml_ops._keras import KERAS_3
from twml_ops.cli import main
from twml_ops.training.config import RunConfig
from twml_ops.training.model import num_weights, read_ahead, storage_scope
from twml_ops.training.trained_run import TrainedRun

# On both TensorFlows: tests/placement/test_tiered.py and tests/checkpoint/test_tiered.py.
pytestmark = [pytest.mark.one_tf, pytest.mark.usefixtures("bare_runs")]

OPTIONS = ["--batch-size", "32", "--epochs", "2", "--model", "sparse_mlp"]
USERS, CACHE = 700, "2000"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """1,200 examples, so that the 240 of the evaluation need fewer rows than the cache has."""
    path = tmp_path_factory.mktemp("data") / "a.csv"
    rng = np.random.default_rng(1)
    users = rng.integers(0, USERS, 1200)
    users[:USERS] = np.arange(USERS)  # all of them are in the training data
    labels = rng.random(1200) < 0.2 + 0.6 * (users % 2)
    lines = [f"{int(y)},u{u},s{u % 5}" for y, u in zip(labels, users, strict=True)]
    path.write_text("\n".join(["label,user,site", *lines]) + "\n")
    return f"csv:{path}"


def train(data, out, *options):
    main(["train", "--data", data, "--out", str(out), *OPTIONS, *options])
    return out


def weights(run):
    return [np.array(w) for w in TrainedRun(run).model.get_weights()]


@pytest.fixture(scope="module")
def in_file(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("in_file")
    with whole_runs():
        return train(data, folder / "run", "--storage", str(folder / "rows"), "--cache-rows", CACHE)


def test_a_run_equals_one_whose_tables_fit_into_the_cache(data, in_file, tmp_path):
    whole = train(data, tmp_path / "run", "--storage", str(tmp_path / "rows"))
    for mine, theirs in zip(weights(in_file), weights(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    facts = [json.loads((run / "run.json").read_text()) for run in (in_file, whole)]
    assert facts[0]["weights"] == facts[1]["weights"] > int(CACHE)
    assert not (tmp_path / "rows").exists()  # no table was large enough
    gc.collect()  # models of Keras 2 are in cycles of references
    assert list((in_file.parent / "rows").iterdir()) == []  # the files were removed


def test_the_files_of_the_run_have_whole_tables(in_file):
    model = TrainedRun(in_file).model
    places = [placement.placement_of(v) for v in model.variables]
    assert not any(isinstance(place, placement.TieredPlacement) for place in places)
    assert max(v.shape[0] for v in model.variables if len(v.shape) == 2) > int(CACHE)
    assert (in_file / "saved_model" / "saved_model.pb").exists()


def assert_equal_weights(runs):
    for mine, theirs in zip(*map(weights, runs), strict=True):
        np.testing.assert_array_equal(mine, theirs)


IN_MEMORY = "1000000"  # rows, which no table has


def test_the_weights_of_the_best_epoch_are_kept_in_a_file(data, tmp_path):
    options = ["--batch-size", "32", "--model", "sparse_mlp", "--no-refit", "--patience", "1"]
    options += ["--validation", "random", "--learning-rate", "2"]
    runs = []
    for rows in (CACHE, IN_MEMORY):
        out, folder = tmp_path / f"run{rows}", tmp_path / f"rows{rows}"
        where = ["--storage", str(folder), "--cache-rows", rows, "--max-epochs", "4"]
        main(["train", "--data", data, "--out", str(out), *options, *where])
        runs.append(out)
    assert_equal_weights(runs)
    assert json.loads((runs[0] / "run.json").read_text())["trained_epochs"] == 1  # of two
    gc.collect()
    assert list((tmp_path / f"rows{CACHE}").iterdir()) == []


def test_a_run_goes_on_from_another_one_in_files_as_in_memory(data, tmp_path):
    """With categories that are new, and with slots of the optimizer."""
    new = tmp_path / "b.csv"
    new.write_text(Path(data.removeprefix("csv:")).read_text().replace(",u1", ",new1"))
    options = ["--batch-size", "32", "--epochs", "1"]
    first = tmp_path / "first"
    begin = ["--model", "dcn", "--set", "min_count=1", "--save-slots"]
    begin += ["--data", data, "--out", str(first)]
    main(["train", *begin, *options])
    runs = tmp_path / "memory", tmp_path / "file"
    for out, cached in zip(runs, (IN_MEMORY, "320"), strict=True):
        again = ["--data", f"csv:{new}", "--from", str(first), "--out", str(out), *options]
        main(["train", *again, "--storage", str(tmp_path / "rows"), "--cache-rows", cached])
    assert_equal_weights(runs)
    assert (tmp_path / "rows").exists()  # a table was large enough


def test_a_run_that_was_interrupted_continues_with_the_same_bits(data, tmp_path, capsys):
    storage = ["--storage", str(tmp_path / "rows"), "--cache-rows", CACHE, "--epochs", "2"]
    assert run_here(data, tmp_path / "undisturbed", "", *storage) == (0, "")
    done = run_steps(data, tmp_path / "run", "40:SIGINT", *storage)
    assert done.returncode == 130, done.stderr
    capsys.readouterr()
    assert run_here(data, tmp_path / "run", "", "--resume", *storage) == (0, "")
    assert re.search(r"continuing from step \d+ ", capsys.readouterr().out)
    runs = weights(tmp_path / "run"), weights(tmp_path / "undisturbed")
    assert max(len(w) for w in runs[0] if w.ndim) > int(CACHE)  # the table was in a file
    for mine, theirs in zip(*runs, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ensemble", "2"], "--storage: --ensemble keeps the trained models in memory"),
        (["--model", "auto"], "--storage: --model auto trains models in memory"),
        (["--cache-rows", "1"], "the .* distinct ids of one lookup must fit into the cache"),
    ],
)
def test_what_cannot_be_is_an_error(data, tmp_path, capsys, options, message):
    with pytest.raises(SystemExit):
        train(data, tmp_path / "run", "--storage", str(tmp_path / "rows"), *options)
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_the_number_of_weights_is_that_of_whole_tables(tmp_path):
    ids = tf.keras.Input([2], dtype="int64")
    with storage_scope(RunConfig("", storage=str(tmp_path), cache_rows=16)):
        model = tf.keras.Model(ids, layers.SparseLinear(2, 100)(ids))
    assert num_weights(model) == 202
    # Keras 2 counts the rows in the cache only.
    assert model.count_params() == 202 if KERAS_3 else model.count_params() < 202


def test_models_that_cannot_read_ahead_have_their_batches_as_they_are():
    class Own(tf.keras.Model):
        def call(self, x):
            return x

    dataset = tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1])))
    assert read_ahead(dataset, Own()) is dataset
