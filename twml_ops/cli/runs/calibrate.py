"""One calibration: a finished run in, a finished run with a calibrated model out."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.markup import escape

from twml_ops import layers
from twml_ops.analysis import scoring
from twml_ops.analysis.permutation_importance import permutation_importance
from twml_ops.analysis.scoring import Scores
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import report, run_summary
from twml_ops.cli.render.progress import Bar
from twml_ops.cli.runs import artifacts
from twml_ops.cli.runs.train import LARGE_BATCH, now, versions
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import Source, original_errors

METHODS = {"isotonic": layers.IsotonicCalibration, "platt": layers.PlattScaling}
TENSORBOARD = "tensorboard"


class Settings(NamedTuple):
    """What the user chose; see `twml-ops calibrate --help`."""

    run: Path
    data: str | None
    eval: str | None
    method: str
    command: str


def run_calibration(settings: Settings, folder: Path, out: Path) -> None:
    """Fits a calibration, evaluates it, and writes everything a run consists of.

    Args:
        settings: what to do.
        folder: where to write.
        out: what `folder` will be called in the end, to show.

    Raises:
        UserError: wrong settings, data of one class, or scikit-learn is not installed.
        ValueError: data that cannot be read.
    """
    console = run_summary.console()
    _check_method(settings.method)
    trained = TrainedRun(settings.run)
    if trained.calibration is not None:
        raise UserError(
            f"{settings.run}: is calibrated already; calibrate the run it was made from, "
            f"{trained.calibration['run']}"
        )
    source, held_out = trained.calibration_pair(settings.data, settings.eval)
    with original_errors(source, held_out):
        sizes = source.num_examples(), held_out.num_examples()
        _show_task(console, settings, trained, source, held_out, sizes)
        start = time.perf_counter()
        with Bar(console, "scoring", sizes[0]) as bar:
            scores = scoring.score(trained.model, source.dataset(LARGE_BATCH), bar.add)
        layer = fit(settings.method, scores, source.name)
        seconds = time.perf_counter() - start
        model = calibrated(trained.model, layer)
        with Bar(console, "evaluating", 2 * sizes[1]) as bar:
            before, after = (
                scoring.score(m, held_out.dataset(LARGE_BATCH), bar.add)
                for m in (trained.model, model)
            )
        with console.status("asking what each feature is worth"):
            sample = held_out.dataset(LARGE_BATCH, shuffle=True, seed=trained.facts["seed"])
            worth = permutation_importance(scoring.predictor(model), sample, trained.schema)

    speed = {"examples_per_second": sizes[0] / seconds, "examples": sizes[0], "seconds": seconds}
    metrics: dict[str, float] = {**scoring.metrics(after), **speed}
    facts = _facts(settings, trained, source, held_out, sizes)
    if (settings.run / TENSORBOARD).is_dir():
        shutil.copytree(settings.run / TENSORBOARD, folder / TENSORBOARD)
    page = report.Facts(metrics, facts, after, [], [], worth, before)
    artifacts.write(folder, model, page)
    run_summary.metrics(console, metrics, scoring.metrics(before))
    console.print(
        f"[dim]the report, the calibrated model and the metrics are in[/] "
        f"[bold]{escape(str(out))}[/]"
    )


def fit(method: str, scores: Scores, name: str) -> layers.IsotonicCalibration | layers.PlattScaling:
    """The calibration layer, fitted.

    Args:
        method: one of METHODS.
        scores: of the data to fit on.
        name: of that data, for errors.

    Raises:
        UserError: there are no positives, or no negatives.
    """
    if len(np.unique(scores.labels)) < 2:
        only = f"only labels of {scores.labels[0]:g}" if len(scores.labels) else "no examples"
        raise UserError(f"{name}: has {only}, expected both classes to calibrate with")
    layer = METHODS[method](name="calibration")
    layer.fit(scores.predictions, scores.labels)
    return layer


def calibrated(model: tf.keras.Model, layer: tf.keras.layers.Layer) -> tf.keras.Model:
    """`model`, probabilities [B, 1], with `layer` at its end."""
    return tf.keras.Model(model.input, layer(model.output), name=model.name)


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}: expected one of {', '.join(METHODS)}")
    if method == "isotonic":
        try:
            import sklearn.isotonic  # noqa: F401  (before the long part, not after it)
        except ImportError as e:
            raise UserError(
                "--method isotonic needs scikit-learn: pip install "
                '"twml_ops[calibrate]", or use --method platt'
            ) from e


def _show_task(
    console: Console,
    settings: Settings,
    trained: TrainedRun,
    source: Source,
    held_out: Source,
    sizes: tuple[int, int],
) -> None:
    console.print(
        f"[bold]model[/]  {escape(str(settings.run))}: {escape(trained.facts['model'])}, trained "
        f"on {escape(trained.facts['train_source'])}",
        soft_wrap=True,
    )
    console.print(
        f"[bold]data [/]  {settings.method} calibration fitted on {escape(source.name)}: "
        f"{sizes[0]:,} examples, evaluated on {escape(held_out.name)}: {sizes[1]:,}",
        soft_wrap=True,
    )
    if settings.data in (trained.facts["data"], trained.facts["train_source"]):
        console.print(
            "[yellow]note[/]   the model was trained on such data, where its predictions are too "
            "sure of themselves, and a calibration learns just that: better use other data",
            soft_wrap=True,
        )


def _facts(
    settings: Settings,
    trained: TrainedRun,
    source: Source,
    held_out: Source,
    sizes: tuple[int, int],
) -> dict[str, Any]:
    """The content of run.json: that of the run, and how it was calibrated."""
    calibration = {
        "method": settings.method,
        "run": str(settings.run),
        "data": settings.data,
        "eval": settings.eval,
        "source": source.name,
        "examples": sizes[0],
    }
    return {
        **trained.facts,
        "eval_source": held_out.name,
        "eval_examples": sizes[1],
        "command": settings.command,
        "finished": now(),
        "versions": versions(),
        "calibration": calibration,
    }
