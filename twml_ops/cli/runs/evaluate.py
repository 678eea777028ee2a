"""`twml-ops evaluate` and `twml-ops predict`: scores a model on a data set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from rich.console import Console

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.analysis.permutation_importance import FeatureImportance, permutation_importance
from twml_ops.analysis.scoring import Scores
from twml_ops.cli.render import run_summary
from twml_ops.cli.render.json_output import print_json
from twml_ops.cli.render.progress import Bar
from twml_ops.cli.render.terminal import make_console, make_error_console, print_warning
from twml_ops.cli.runs.folder import optional_file, write_result
from twml_ops.cli.runs.known import checked
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import Source, original_errors


def score_source(
    model: tf.keras.Model,
    source: Source,
    console: Console,
    size: int | None = None,
    title: str = "evaluating",
    batch_size: int = LARGE_BATCH_SIZE,
    labels: Sequence[str] | None = None,
) -> dict[str, Scores]:
    """The predictions of a model for a data set by label, with a progress bar on `console`.

    Args:
        model: model that returns probabilities [B, 1]; of several labels a dict of them.
        source: the data set.
        console: terminal of the progress bar.
        size: number of examples, if known.
        title: label of the progress bar.
        batch_size: number of examples in a batch.
        labels: names of the labels of the model; None: the labels of the data set.
    """
    with Bar(console, title, size) as bar:
        batches = source.dataset(batch_size, layout=models.layout_of(model))
        names = source.schema.labels if labels is None else labels
        scores = scoring.score_labels(model, batches, names, bar.add)
    if labels is None:
        for text in scoring.undefined_metrics(scores, source.name):
            print_warning(console, text)
    return scores


def importances_of(
    model: tf.keras.Model, source: Source, seed: int, console: Console
) -> list[FeatureImportance]:
    """The permutation importance of each feature on a random sample of a data set."""
    with console.status("computing permutation importance"):
        predict = scoring.predictor(model, source.schema.labels)
        layout = models.layout_of(model)
        return permutation_importance(predict, source, layout=layout, sample_seed=seed)


def throughput(examples: int, seconds: float) -> dict[str, float]:
    """The entries of metrics.json about speed."""
    return {
        "examples_per_second": examples / seconds,
        "examples": examples,
        "seconds": seconds,
    }


def evaluate_run(run: Path, data: str | None, batch_size: int, as_json: bool) -> None:
    """Evaluates a finished run and prints its metrics.

    Args:
        run: folder of the run.
        data: SOURCE to evaluate on; None: the evaluation data of the run.
        batch_size: number of examples in a batch.
        as_json: print JSON instead of a table.

    Raises:
        UserError: the folder is not a finished run.
        ValueError: data cannot be read.
    """
    trained = TrainedRun(run)
    source = trained.source(data)
    with original_errors(source), checked(run, source):
        scores = score_source(
            trained.model, source, make_error_console(), title=source.name, batch_size=batch_size
        )
    by_label = scoring.metrics_by_label(scores)
    first = next(iter(scores.values()))
    speed = throughput(len(first.labels), first.seconds)
    metrics = {**scoring.mean_metrics(by_label), **speed}
    if as_json:
        print_json(scoring.with_labels(metrics, by_label))
    else:
        run_summary.print_evaluation(make_console(), run, source, metrics, by_label)


def predict_run(
    run: Path, data: str, batch_size: int, out: Path | None, overwrite: bool = False
) -> None:
    """Writes the predicted probability of each example on a line of its own, in order.

    With several labels a line has the probability of each, in the order of the run's schema, with
    tabs between them.

    Args:
        run: folder of the run.
        data: SOURCE of the examples, without labels if it is of CSV, Parquet or TFRecord files.
        batch_size: number of examples in a batch.
        out: file to write; None: the standard output.
        overwrite: replace an existing file.

    Raises:
        UserError: the folder is not a finished run, or `out` cannot be written.
        ValueError: data cannot be read.
    """
    with optional_file(out, overwrite) as file:
        columns = _predictions(run, data, batch_size)
        if file is None or out is None:
            np.savetxt(sys.stdout, columns, fmt="%.7g", delimiter="\t")
        else:
            write_result(file, out, lambda path: _write_columns(path, columns))


def _write_columns(path: Path, columns: np.ndarray) -> None:
    with path.open("w", encoding="ascii") as file:  # as it is, whatever the suffix
        np.savetxt(file, columns, fmt="%.7g", delimiter="\t")


def _predictions(run: Path, data: str, batch_size: int) -> np.ndarray:
    """The probabilities of each example, with a column for each label."""
    trained = TrainedRun(run)
    source, labels = trained.unlabeled_source(data), trained.schema.labels
    console = make_error_console()
    with original_errors(source), checked(run, source):
        scores = score_source(
            trained.model,
            source,
            console,
            title=source.name,
            batch_size=batch_size,
            labels=labels,
        )
    return np.stack([scores[label].predictions for label in labels], axis=1)
