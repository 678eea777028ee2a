"""`twml-ops train` without a schema, with one written by hand, and LightGBM: docs/train.md.

    python -m benchmarks.click_log --seeds 3

Each seed makes another click log (`examples/click_log.py`). The latest fifth is the test data. The
schema by hand names the kind of every column. LightGBM stops early on the latest tenth of the
training data, and reads the columns in three ways: as numbers (texts by their order), ids and texts
as categories, and as the mean labels of their categories in other parts of the training data.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import lightgbm
import numpy as np
import numpy.typing as npt
import typer

from benchmarks import machine

LOG = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "click_log.py"))
CATEGORIES = ("user_id", "item_id", "country", "device")
PRIOR, FOLDS, ROUNDS = 20.0, 5, 1000
Array = npt.NDArray[Any]
Columns = dict[str, Array]


def write_schema(path: Path) -> None:
    """The schema that one writes who knows the data."""
    numbers, bags = ("price", "position"), ("tags",)
    kinds = {"continuous": numbers, "categorical": CATEGORIES, "bag": bags}
    features = [{"name": n, "kind": kind} for kind, names in kinds.items() for n in names]
    content = {"features": features, "labels": ["clicked"], "time": "timestamp"}
    path.write_text(json.dumps(content))


def auc_of_run(log: Path, out: Path, seed: int, *options: str) -> float:
    """Trains by the command, and returns the AUC on the evaluation data."""
    command = ["train", "--data", str(log), "--out", str(out), "--seed", str(seed), *options]
    subprocess.run([sys.executable, "-m", "twml_ops.cli", *command], check=True)
    return float(json.loads((out / "metrics.json").read_text())["auc"])


def auc(labels: Array, scores: Array) -> float:
    """The area under the ROC curve; equal scores count half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positives = labels.sum()
    above = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


def as_codes(columns: Columns) -> Array:
    """All columns as numbers: times as seconds, texts as their place in alphabetical order."""
    seconds = columns["timestamp"].astype("datetime64[s]").astype(np.float64)
    numbers = [columns[n].astype(float) for n in ("user_id", "item_id", "price", "position")]
    codes = [np.unique(columns[n], return_inverse=True)[1] for n in ("country", "device", "tags")]
    return np.stack([seconds, *numbers, *codes], axis=1)


def as_categories(columns: Columns) -> Array:
    """Codes of the columns of categories, one column for each tag, and numbers behind them."""
    codes = [np.unique(columns[n], return_inverse=True)[1] for n in CATEGORIES]
    numbers = [columns[n].astype(float) for n in ("price", "position")]
    names = sorted({tag for text in np.unique(columns["tags"]) for tag in text.split("|")})
    texts = np.char.add(np.char.add("|", columns["tags"]), "|")
    tags = [np.char.find(texts, f"|{name}|") >= 0 for name in names]
    return np.stack([*codes, *numbers, *tags], axis=1).astype(float)


def as_means(columns: Columns, labels: Array, train: int, seed: int) -> Array:
    """The same with the mean labels of categories, and of pairs of two, in other folds."""
    table = as_categories(columns)
    pairs = [(0, 1), (2, 3)]
    keys = [*table[:, : len(CATEGORIES)].T, *(table[:, a] * 1e6 + table[:, b] for a, b in pairs)]
    folds = np.where(
        np.arange(len(labels)) < train,
        np.random.default_rng(seed).integers(FOLDS, size=len(labels)),
        FOLDS,
    )
    means = []
    for key in keys:
        codes, mean = np.unique(key, return_inverse=True)[1], np.zeros(len(key))
        for fold in range(FOLDS + 1):
            known = (folds != fold) & (folds < FOLDS)
            base = labels[known].mean()
            sums = np.bincount(codes[known], labels[known], codes.max() + 1)
            counts = np.bincount(codes[known], minlength=codes.max() + 1)
            of_fold = codes[folds == fold]
            mean[folds == fold] = ((sums + PRIOR * base) / (counts + PRIOR))[of_fold]
        means.append(mean)
    return np.concatenate([np.stack(means, axis=1), table[:, len(CATEGORIES) :]], axis=1)


def auc_of_trees(table: Array, labels: Array, train: int, seed: int, categories: int = 0) -> float:
    """The AUC of LightGBM on the rows from `train` on."""
    fit = train - train // 10
    parameters = {
        "objective": "binary",
        "learning_rate": 0.05,
        "num_leaves": 31,
        "seed": seed,
        "verbose": -1,
        "num_threads": 2,
    }
    columns = [*range(categories)]
    data = lightgbm.Dataset(table[:fit], labels[:fit], categorical_feature=columns)
    valid = lightgbm.Dataset(table[fit:train], labels[fit:train], reference=data)
    stop = lightgbm.early_stopping(50, verbose=False)
    model = lightgbm.train(parameters, data, ROUNDS, [valid], callbacks=[stop])
    return auc(labels[train:], np.asarray(model.predict(table[train:])))


def measure(seed: int, rows: int, folder: Path) -> dict[str, float]:
    """The AUC of each way to train, on the log of a seed."""
    log, schema = folder / f"clicks{seed}.csv", folder / "by_hand.json"
    LOG["write"](log, seed, rows)
    write_schema(schema)
    by_hand = ("--schema", str(schema))
    found = {
        "train --label clicked": auc_of_run(
            log, folder / f"guess{seed}", seed, "--label", "clicked"
        ),
        "train --schema, by hand": auc_of_run(log, folder / f"hand{seed}", seed, *by_hand),
    }
    columns = LOG["generate"](seed, rows)
    labels, train = columns["clicked"].astype(int), rows - rows // 5
    found["LightGBM, numbers"] = auc_of_trees(as_codes(columns), labels, train, seed)
    table = as_categories(columns)
    found["LightGBM, categories"] = auc_of_trees(table, labels, train, seed, len(CATEGORIES))
    table = as_means(columns, labels, train, seed)
    found["LightGBM, mean labels"] = auc_of_trees(table, labels, train, seed)
    return found


def print_row(name: str, values: Array) -> None:
    """Prints a mean, its standard error and the values."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    each = " ".join(f"{value:.4f}" for value in values)
    print(f"{name:<26} {values.mean():.4f} ± {error:.4f}   {each}")


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many logs.")] = 3,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of a log.")] = 100_000,
) -> None:
    """Prints the AUC of each way to train on each log, and the differences, with their errors."""
    with tempfile.TemporaryDirectory() as folder:
        found = [measure(seed, rows, Path(folder)) for seed in range(1, seeds + 1)]
    print(json.dumps(machine.describe("python -m benchmarks.click_log"), indent=1))
    names = [*found[0]]
    table = np.array([[of_seed[name] for name in names] for of_seed in found])
    for name, values in zip(names, table.T, strict=True):
        print_row(name, values)
    print("The first row minus each other one, log by log:")
    for name, values in zip(names[1:], (table[:, :1] - table[:, 1:]).T, strict=True):
        print_row(name, values)


if __name__ == "__main__":
    typer.run(main)
