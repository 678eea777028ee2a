"""`twml-ops calibrate`: a copy of a finished run whose model ends in a calibration layer."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.markup import escape

from twml_ops import layers
from twml_ops._known_categories import KnownCategories
from twml_ops.analysis import scoring
from twml_ops.analysis.scoring import Scores
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import run_summary
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.results.history import History
from twml_ops.cli.results.run_result import RunResult
from twml_ops.cli.runs import artifacts
from twml_ops.cli.runs.evaluate import importances_of, score_source, throughput
from twml_ops.cli.runs.folder import TENSORBOARD, new_folder
from twml_ops.cli.runs.run_facts import provenance
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import Source, original_errors

METHODS = {"isotonic": layers.IsotonicCalibration, "platt": layers.PlattScaling}


def calibrate_run(
    run: Path, data: str | None, evaluation: str | None, method: str, out: Path, overwrite: bool
) -> None:
    """Fits a calibration on held-out data, and writes a run whose model ends in it.

    Args:
        run: folder of the finished run to calibrate.
        data: SOURCE to fit the calibration on; None: the evaluation data of the run.
        evaluation: SOURCE to evaluate on; None: a part of `data`, which is then not fitted on.
        method: one of METHODS.
        out: folder to create.
        overwrite: replace a finished run in `out`.

    Raises:
        UserError: an option is wrong, the data have one class only, or scikit-learn is missing.
        ValueError: data cannot be read.
    """
    with new_folder(out, overwrite) as folder:
        _check_method(method)
        trained = TrainedRun(run)
        if trained.calibration is not None:
            raise UserError(
                f"{run}: is calibrated already; calibrate the run that it was made from, "
                f"{trained.calibration['run']}"
            )
        console = make_console()
        source, held_out = trained.calibration_pair(data, evaluation)
        with original_errors(source, held_out):
            sizes = source.num_examples(), held_out.num_examples()
            _print_task(console, run, trained, method, source, held_out)
            if data in (trained.facts["data"], trained.facts["train_source"]):
                _print_warning(console)
            before = score_source(trained.model, held_out, console, sizes[1])
            start = time.perf_counter()
            scores = score_source(trained.model, source, console, sizes[0], "scoring")
            fitted = {
                label: fit(
                    method, of_label, source.name, f"calibration_{i}" if i else "calibration"
                )
                for i, (label, of_label) in enumerate(scores.items())
            }
            seconds = time.perf_counter() - start
            model = append_layers(trained.model, fitted)
            after = score_source(model, held_out, console, sizes[1])
            importances = importances_of(model, held_out, trained.facts["seed"], console)
        if (run / TENSORBOARD).is_dir():
            shutil.copytree(run / TENSORBOARD, folder / TENSORBOARD)
        calibration = {
            "method": method,
            "run": str(run),
            "data": data,
            "eval": evaluation,
            "source": source.name,
            "examples": sizes[0],
        }
        facts: dict[str, Any] = {
            **trained.facts,
            "eval_source": held_out.name,
            "eval_examples": sizes[1],
            **provenance(),
            "calibration": calibration,
        }
        means = scoring.mean_metrics(scoring.metrics_by_label(after))
        metrics = {**means, **throughput(sizes[0], seconds)}
        result = RunResult(model, History(), after, metrics, importances, facts, before)
        artifacts.write_model(folder, out, model)
        known = KnownCategories.load(run)
        if known is not None:
            known.save(folder)
        artifacts.write(folder, result)
    files = "the report, the calibrated model and the metrics"
    run_summary.print_result(console, result, files, out)


def fit(
    method: str, scores: Scores, data: str, name: str = "calibration"
) -> layers.IsotonicCalibration | layers.PlattScaling:
    """Fits a calibration layer.

    Args:
        method: one of METHODS.
        scores: labels and predictions to fit on.
        data: name of the data, for error messages.
        name: name of the layer.

    Raises:
        UserError: all labels are equal.
    """
    if len(np.unique(scores.labels)) < 2:
        only = f"only labels of {scores.labels[0]:g}" if len(scores.labels) else "no examples"
        raise UserError(f"{data}: has {only}, expected both classes to calibrate with")
    layer = METHODS[method](name=name)
    layer.fit(scores.predictions, scores.labels, scores.weights)
    return layer


def append_layers(
    model: tf.keras.Model, fitted: Mapping[str, tf.keras.layers.Layer]
) -> tf.keras.Model:
    """A model that applies the layer of each label to the probabilities [B, 1] of `model`."""
    if isinstance(model.output, dict):
        outputs = {label: layer(model.output[label]) for label, layer in fitted.items()}
    else:
        (layer,) = fitted.values()
        outputs = layer(model.output)
    return tf.keras.Model(model.input, outputs, name=model.name)


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}: expected one of {', '.join(METHODS)}")
    if method == "isotonic":
        try:
            import sklearn.isotonic  # noqa: F401  (fail before the data are read)
        except ImportError as e:
            raise UserError(
                "--method isotonic needs scikit-learn: pip install "
                '"twml_ops[calibrate]", or use --method platt'
            ) from e


def _print_task(
    console: Console, run: Path, trained: TrainedRun, method: str, source: Source, held_out: Source
) -> None:
    console.print(
        f"[bold]model[/]  {escape(str(run))}: {escape(trained.facts['model'])}, trained "
        f"on {escape(trained.facts['train_source'])}",
        soft_wrap=True,
    )
    console.print(
        f"[bold]data [/]  {method} calibration fitted on {escape(source.name)}: "
        f"{source.num_examples():,} examples, evaluated on {escape(held_out.name)}: "
        f"{held_out.num_examples():,}",
        soft_wrap=True,
    )


def _print_warning(console: Console) -> None:
    console.print(
        "[yellow]warning[/]  the model was trained on these data. Its predictions are "
        "overconfident there, and the calibration would learn that: use other data",
        soft_wrap=True,
    )
