"""Compares `twml-ops train` with scikit-learn's logistic regression on the same rows.

    python -m benchmarks.quality flights
    python -m benchmarks.quality criteo:PATH            # the last fifth of the rows is held out
    python -m benchmarks.quality libsvm:TRAIN --evaluate libsvm:TEST
    python -m benchmarks.quality criteo:PATH --numbers  # the effect of buckets, see `main`

The logistic regression sees numbers as one-hot quantile buckets (20 per feature) and categories as
one-hot features. Its regularization C is the best of a few on the last fifth of the training rows.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse
import typer
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from twml_ops import data
from twml_ops.cli import main as twml_ops

BUCKETS = 20
CANDIDATES = (0.01, 0.03, 0.1, 0.3, 1.0)
EPOCHS, BATCH_SIZE = 4, 256  # for --numbers; the defaults of `twml-ops train`


class OneHot:
    """One-hot encoding with the boundaries and categories of the training rows.

    Args:
        source: the training rows.
    """

    def __init__(self, source: data.Source) -> None:
        groups, self.labels = _read(source)
        self._continuous = source.schema.continuous
        self._boundaries = {}
        if "continuous" in groups:
            _, ids, values = groups["continuous"]
            quantiles = np.linspace(0, 1, BUCKETS + 1)[1:-1]
            for f in range(len(self._continuous)):
                self._boundaries[f] = np.unique(np.quantile(values[ids == f], quantiles))
        self._categories = np.unique(groups["categorical"][1]) if "categorical" in groups else None
        self._sparse_dim = source.schema.sparse_dim
        self.rows = self._encode(groups, len(self.labels))

    def transform(self, source: data.Source) -> tuple[Any, Any]:
        """(rows, labels) of other examples, without categories that the training rows lack."""
        groups, labels = _read(source)
        return self._encode(groups, len(labels)), labels

    def _encode(self, groups: dict[str, Any], num_rows: int) -> Any:
        parts = []
        if "continuous" in groups:
            rows, ids, values = groups["continuous"]
            buckets = np.zeros(len(ids), np.int64)
            for f, boundaries in self._boundaries.items():
                entries = ids == f
                buckets[entries] = f * BUCKETS + np.searchsorted(boundaries, values[entries])
            width = BUCKETS * len(self._continuous)
            parts.append(_matrix(np.ones(len(ids)), rows, buckets, num_rows, width))
        if self._categories is not None:
            rows, ids, _ = groups["categorical"]
            columns = np.searchsorted(self._categories, ids)
            columns = np.minimum(columns, len(self._categories) - 1)
            known = self._categories[columns] == ids
            ones, width = np.ones(known.sum()), len(self._categories)
            parts.append(_matrix(ones, rows[known], columns[known], num_rows, width))
        if "sparse" in groups:
            rows, ids, values = groups["sparse"]
            values = np.ones(len(ids)) if values is None else values
            parts.append(_matrix(values, rows, ids, num_rows, self._sparse_dim))
        return scipy.sparse.hstack(parts, format="csr")


def _matrix(values: Any, rows: Any, columns: Any, num_rows: int, width: int) -> Any:
    return scipy.sparse.csr_matrix((values, (rows, columns)), (num_rows, width))


def _read(source: data.Source) -> tuple[dict[str, Any], Any]:
    blocks = list(source.blocks())
    labels = np.concatenate([b.labels for b in blocks]).ravel()
    groups = {}
    for name in blocks[0].groups:
        parts = [b.groups[name] for b in blocks]
        lengths = np.concatenate([np.diff(p.row_splits) for p in parts])
        values = None
        if parts[0].values is not None:
            values = np.concatenate([p.values for p in parts])
        ids = np.concatenate([p.ids for p in parts])
        groups[name] = (np.repeat(np.arange(len(labels)), lengths), ids, values)
    return groups, labels


def predict_scikit_learn(train: data.Source, held_out: data.Source) -> tuple[Any, Any, float]:
    """Trains scikit-learn's model; returns its predictions, the labels, and the selected C."""
    one_hot = OneHot(train)
    rows, labels = one_hot.rows, one_hot.labels
    cut = len(labels) * 4 // 5

    def fit(c: float, stop: int) -> Any:
        return LogisticRegression(C=c, max_iter=300).fit(rows[:stop], labels[:stop])

    def inner_loss(c: float) -> float:
        return log_loss(labels[cut:], fit(c, cut).predict_proba(rows[cut:])[:, 1])

    best = min(CANDIDATES, key=inner_loss)
    test_rows, test_labels = one_hot.transform(held_out)
    return fit(best, len(labels)).predict_proba(test_rows)[:, 1], test_labels, best


def predict_twml_ops(source: str, evaluate: str | None, held_out: data.Source) -> Any:
    """Runs `twml-ops train` with its default options; returns the predictions of its model."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        twml_ops(
            ["train", "--data", source, "--out", str(run)]
            + (["--eval", evaluate] if evaluate else [])
        )
        print(json.loads((run / "metrics.json").read_text()))
        score = tf.saved_model.load(str(run / "saved_model"))
        return np.concatenate([np.ravel(score(x)) for x, _ in held_out.dataset(8192)])


def predict_with_and_without_buckets(
    train: data.Source, held_out: data.Source, seeds: int
) -> dict[str, Any]:
    """Trains the same model without and with buckets, from the same seeds.

    The first `sparse_mlp` sees numbers as sign(x) log(1 + |x|), scaled to [-1, 1] by `MaxNorm`. The
    second also sees 20 quantile buckets per feature. Both are trained with the default options of
    `twml-ops train`.

    Returns:
        name of the variant -> the predictions of each seed.
    """
    import tensorflow as tf

    from twml_ops import models
    from twml_ops.cli.runs import optimizers

    def logs(features: dict[str, Any], labels: Any) -> tuple[dict[str, Any], Any]:
        values = features["continuous_values"]
        flat = tf.sign(values.flat_values) * tf.math.log1p(tf.abs(values.flat_values))
        return {**features, "continuous_values": values.with_flat_values(flat)}, labels

    def predictions(discretize: bool, seed: int) -> Any:
        tf.keras.utils.set_random_seed(seed)
        whole = train.dataset(8192).map(logs)
        model = models.sparse_mlp(train.schema, whole, discretize=discretize)
        steps = EPOCHS * -(-train.num_examples() // BATCH_SIZE)
        rate = optimizers.learning_rate_of("adagrad")
        model.compile(
            optimizers.create("adagrad", rate, steps),
            "binary_crossentropy",
            steps_per_execution=16,
            jit_compile=False,
        )
        batches = train.dataset(BATCH_SIZE, shuffle=True, seed=seed).map(logs)
        model.fit(batches, epochs=EPOCHS, shuffle=False, verbose=0)
        return np.concatenate(
            [np.ravel(model(x, training=False)) for x, _ in held_out.dataset(8192).map(logs)]
        )

    names = {"logarithms of the numbers": False, "buckets beside them": True}
    return {
        name: [predictions(discretize, seed) for seed in range(seeds)]
        for name, discretize in names.items()
    }


def compare_numbers(source: str, train: data.Source, held_out: data.Source, seeds: int) -> None:
    """Prints the results of `predict_with_and_without_buckets`: means over the seeds."""
    labels = np.concatenate([np.ravel(y) for _, y in held_out.dataset(8192)])
    rows = f"{train.num_examples():,} / {held_out.num_examples():,} rows, {seeds} seeds"
    table = Table("sparse_mlp on", "AUC", "log loss", "RCE", title=f"{source}: {rows}")
    base = log_loss(labels, np.full(len(labels), labels.mean()))
    for name, predicted in predict_with_and_without_buckets(train, held_out, seeds).items():
        loss = np.mean([log_loss(labels, p) for p in predicted])
        auc = np.mean([roc_auc_score(labels, p) for p in predicted])
        table.add_row(name, f"{auc:.4f}", f"{loss:.4f}", f"{100 * (1 - loss / base):.2f}")
    Console().print(table)


def main(
    source: str,
    evaluate: Annotated[str | None, typer.Option()] = None,
    numbers: Annotated[
        bool,
        typer.Option(
            "--numbers", help="Compare training with and without the discretizer instead."
        ),
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="For --numbers: training runs of each variant.")
    ] = 3,
) -> None:
    """Prints AUC, log loss, accuracy and RCE of both models.

    With `--numbers` it compares two variants of `sparse_mlp` instead: with and without buckets.
    """
    train = data.open_source(source)
    if evaluate:
        held_out = data.open_source(evaluate, like=train.schema)
    else:
        train, held_out = train.split()
    if numbers:
        return compare_numbers(source, train, held_out, seeds)
    predicted = predict_twml_ops(source, evaluate, held_out)
    expected, labels, c = predict_scikit_learn(train, held_out)
    table = Table(title=f"{source}: {train.num_examples():,} / {held_out.num_examples():,} rows")
    for column in ("", "AUC", "log loss", "accuracy", "RCE"):
        table.add_column(column, justify="right" if column else "left")
    base = np.full(len(labels), labels.mean())
    for name, p in (
        ("twml_ops sparse_mlp", predicted),
        (f"scikit-learn, C = {c}", expected),
    ):
        loss = log_loss(labels, p)
        table.add_row(
            name,
            f"{roc_auc_score(labels, p):.4f}",
            f"{loss:.4f}",
            f"{accuracy_score(labels, p > 0.5):.4f}",
            f"{100 * (1 - loss / log_loss(labels, base)):.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
