"""The comparison with other libraries: its encodings, its record of runs, and its tables."""

import dataclasses
import gzip
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from benchmarks.quality import data_sets, encodings, examples, page, peers, train_command
from benchmarks.quality.__main__ import Session
from benchmarks.quality.results import Results

LIBRARIES = {"logistic_regression": "sklearn", "deepfm": "keras"}  # the others: of their own name


def make(rows, seed=0):
    """Examples whose labels depend on a number, on a category and on a sparse feature."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, 2)).astype(np.float32)
    numbers[rng.random(numbers.shape) < 0.1] = np.nan
    categories = rng.integers(0, 5, (rows, 2)).astype(np.int64) * 10**12
    categories[rng.random(categories.shape) < 0.1] = -1
    sparse = scipy.sparse.random(rows, 6, 0.3, "csr", np.float32, rng=seed)
    logit = 2 * np.nan_to_num(numbers[:, 0]) + (categories[:, 0] == 0) - 1
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return examples.Examples(numbers, categories, sparse, labels)


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["label,city,age"]
    for _ in range(300):
        city, age = rng.integers(4), rng.integers(60)
        lines.append(f"{int(rng.random() < (city + 1) / 6)},c{city},{age}")
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(lines) + "\n")
    return f"csv:{path}"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n == "deepfm" else ()) for n in peers.names()],
)
def test_a_peer_learns_and_is_reproducible(name):
    if importlib.util.find_spec(LIBRARIES.get(name, name)) is None:
        pytest.skip(f"{name} is not installed")
    try:
        peer = peers.create(name, 1)
    except ImportError as e:  # Keras 2
        pytest.skip(str(e))
    train, scored = make(600), make(300, seed=1)
    peer.grid = peer.grid[:1]
    tuned = peer.tune(train, scored)
    assert [t["validation_log_loss"] > 0 for t in tuned.tried] == [True]

    def predict():
        return peer.run(tuned.settings, train, scored, seed=3, stop_early=False).predictions

    found = predict()
    assert found.shape == (300,)
    base = np.full(300, train.labels.mean())
    loss = page_loss(scored.labels, found)
    assert loss < page_loss(scored.labels, base)
    np.testing.assert_allclose(predict(), found, rtol=1e-4)


def page_loss(labels, predictions):
    return -np.mean(np.log(np.where(labels > 0.5, predictions, 1 - predictions)))


def test_no_label_is_in_the_target_mean_of_its_own_example():
    rows = 40
    one_each = np.arange(rows)[:, np.newaxis].astype(np.int64)
    labels = (np.arange(rows) % 2).astype(np.float32)
    empty = np.zeros((rows, 0), np.float32)
    train = examples.Examples(empty, one_each, scipy.sparse.csr_matrix(empty), labels)
    means = encodings.TargetMeans(train).of_training_data()[:, 0]
    flipped = dataclasses.replace(train, labels=1 - labels)
    # Every category occurs once, so a mean is the base rate of the other folds.
    np.testing.assert_allclose(
        encodings.TargetMeans(flipped).of_training_data()[:, 0], 1 - means, atol=1e-6
    )
    assert np.ptp(means) < 0.5


def test_an_unseen_category_has_the_base_rate_and_no_count():
    train = make(100)
    found = encodings.TargetMeans(train).transform(
        dataclasses.replace(train, categories=np.full_like(train.categories, 77))
    )
    np.testing.assert_array_less(np.abs(found[:, :2] - train.labels.mean()), 0.2)


def test_a_vocabulary_has_no_id_for_what_is_rare_missing_or_unknown():
    known = np.array([[5], [5], [9], [-1]])
    vocabulary = encodings.Vocabulary(known, min_count=2)
    assert vocabulary.sizes == [2]
    assert vocabulary.transform(np.array([[5], [9], [-1], [6]])).tolist() == [[1], [0], [0], [0]]


def test_one_hot_rows_have_a_column_for_each_value_that_is_present():
    train = make(200)
    encoded = encodings.OneHot(train).transform(train)
    present = (~np.isnan(train.numbers)).sum() + (train.categories >= 0).sum()
    assert encoded.nnz == present + train.sparse.nnz


def test_a_finished_run_is_not_repeated(source, tmp_path):
    pytest.importorskip("sklearn")
    from rich.console import Console

    path = tmp_path / "results.json"
    data = data_sets.get(f"mine={source}")
    for seeds in (1, 2):
        Session(data, Results(path), seeds, 1, Console(quiet=True)).measure("logistic_regression")
    runs = json.loads(path.read_text())["runs"]["mine"]["scikit-learn LogisticRegression"]
    assert list(runs) == ["0", "1"]
    assert runs["0"] == runs["1"]
    assert 0.5 < runs["0"]["auc"] < 1
    Session(data, Results(path), 1, 1, Console(quiet=True)).measure("logistic_regression", True)
    again = json.loads(path.read_text())["runs"]["mine"]["scikit-learn LogisticRegression"]
    assert list(again) == ["0"]
    assert again["0"]["auc"] == runs["0"]["auc"]


@pytest.mark.slow
def test_the_train_command_is_a_contender(source):
    found = train_command.run("train --epochs 1", data_sets.get(f"mine={source}"), 0, 1)
    assert found["log_loss"] > 0
    assert set(found) == {"auc", "log_loss", "calibration", "cpu_seconds"}


def test_options_that_train_lacks_are_found_before_a_run():
    assert train_command.is_available("train --model sparse_mlp")
    assert not train_command.is_available("train --no-such-option 5")
    assert not train_command.is_available("train --model no_such_model")


def test_the_sample_in_a_random_order_has_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(data_sets.tempfile, "tempdir", str(tmp_path))
    rows = [f"{i % 2}\t{i}" + "\t" * 38 + "\n" for i in range(50)]
    (tmp_path / "criteo_dev_100k.tsv.gz").write_bytes(gzip.compress("".join(rows).encode()))
    data = data_sets.get("criteo_random", tmp_path)
    shuffled = Path(data.source.partition(":")[2]).read_text().splitlines(keepends=True)
    assert sorted(shuffled) == sorted(rows) != shuffled
    assert [part.num_examples() for part in data.open()] == [40, 10]


def test_an_unknown_data_set_is_an_error():
    with pytest.raises(ValueError, match="unknown data set 'clicks'"):
        data_sets.get("clicks")


def runs_of(losses):
    return {
        str(seed): {"auc": 1 - loss, "log_loss": loss, "calibration": 1.0, "cpu_seconds": 1.0}
        for seed, loss in enumerate(losses)
    }


def test_the_difference_is_paired_by_seed():
    found = page.difference(runs_of([0.5, 0.7, 0.9]), runs_of([0.4, 0.6, 0.8]), "log_loss")
    np.testing.assert_allclose(found, [0.1, 0.1, 0.1])
    found = page.difference(runs_of([0.5, 0.6]), runs_of([0.4, 0.4]), "log_loss")
    half = 12.706 * 0.05  # the standard error of the differences 0.1 and 0.2
    np.testing.assert_allclose(found, [0.15, 0.15 - half, 0.15 + half])


def test_the_best_peer_is_chosen_for_each_metric_and_is_never_ours():
    runs = {"a": runs_of([0.5]), "b": runs_of([0.4]), "train": runs_of([0.3])}
    assert page.best_peer(runs, "log_loss") == "b"
    assert page.best_peer(runs, "auc") == "b"
    assert page.best_peer({"train": runs_of([0.3])}, "auc") is None


def test_the_page_says_whether_ours_is_level_with_the_best_peer():
    content = {
        "data": {"d": {"description": "D.", "train": 10, "test": 5, "base_rate": 0.2}},
        "tuned": {"d": {"a": {"settings": {"C": 0.1}}}},
        "runs": {
            "d": {
                "a": runs_of([0.40, 0.41, 0.42]),
                "train": runs_of([0.41, 0.40, 0.42]),
                "train --ensemble 5": runs_of([0.30, 0.31, 0.32]),
                "train --epochs 1": runs_of([0.50, 0.51, 0.52]),
            }
        },
    }
    text = page.data_set(content, "d")
    cells = [line.split("|")[-2].strip() for line in text.splitlines() if line.endswith("|")]
    verdicts = [cell for cell in cells if cell in ("level", "ahead", "behind")]
    assert verdicts == ["level", "level", "ahead", "ahead", "behind", "behind"]
    assert "a: C = 0.1" in text
    row = page.summary(content).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["`d`", "10", "0.4100", "+0.0000, level (a)", "+0.0000, level (a)"]


def test_the_summary_leaves_out_data_without_a_peer_or_without_default_options():
    runs = {"d": {"train": runs_of([0.3])}, "e": {"a": runs_of([0.3]), "train --x": runs_of([0.3])}}
    data = {"d": {"train": 10}, "e": {"train": 10}}
    assert len(page.summary({"data": data, "runs": runs}).splitlines()) == 2  # the header
