"""One training run: data in, a folder with a model and its report out."""

from __future__ import annotations

import dataclasses
import datetime
import math
import platform
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.markup import escape

import twml_ops
from twml_ops import _keras, models
from twml_ops.analysis import scoring
from twml_ops.analysis.permutation_importance import permutation_importance
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import report, run_summary
from twml_ops.cli.render.progress import Bar, Report
from twml_ops.cli.runs import artifacts, cluster_runner, optimizers
from twml_ops.cli.runs.folder import FORMAT
from twml_ops.cli.runs.sources import open_pair
from twml_ops.data import Source, original_errors

STEPS_PER_EXECUTION = 16  # Keras' own cost per call is then shared
LARGE_BATCH = 8192


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user chose; see `twml-ops train --help`."""

    data: str
    eval: str | None
    model: str
    optimizer: str
    learning_rate: float | None
    batch_size: int
    epochs: int
    seed: int
    command: str


def run(
    settings: Settings, folder: Path, out: Path, cluster: cluster_runner.Options | None = None
) -> None:
    """Trains and evaluates, and writes everything a run consists of.

    Args:
        settings: what to do.
        folder: where to write.
        out: what `folder` will be called in the end, to show.
        cluster: how to train with the others of a cluster; None: alone.

    Raises:
        UserError: wrong settings, or a loss that became NaN.
        ValueError: an unknown model, or data that cannot be read.
    """
    console = run_summary.console()
    build = models.get(settings.model)
    settings = dataclasses.replace(settings, learning_rate=_learning_rate(settings))
    if cluster is not None:
        cluster_runner.connect(cluster)
    train, held_out = open_pair(settings.data, settings.eval)
    tf.keras.utils.set_random_seed(settings.seed)
    with original_errors(train, held_out):
        with console.status(f"reading {escape(train.name)}"):
            sizes = train.num_examples(), held_out.num_examples()
            make = partial(build, train.schema, train.dataset(LARGE_BATCH))
            model = (
                make() if cluster is None else cluster_runner.built(make, settings, cluster, out)
            )
        run_summary.data(console, train, held_out, *sizes)
        run_summary.model(console, model.name, model.count_params(), settings.optimizer)
        progress: Report | cluster_runner.Progress
        if cluster is None:
            progress = fit(model, train, held_out, settings, folder / "tensorboard", console)
        else:
            model, progress = cluster_runner.fit(
                model, train, settings, cluster, folder, out, console
            )
        with Bar(console, "evaluating", sizes[1]) as bar:
            scores = scoring.score(model, held_out.dataset(LARGE_BATCH), bar.add)
        with console.status("asking what each feature is worth"):
            sample = held_out.dataset(LARGE_BATCH, shuffle=True, seed=settings.seed)
            worth = permutation_importance(scoring.predictor(model), sample, train.schema)

    metrics: dict[str, float] = {
        **scoring.metrics(scores),
        "examples_per_second": progress.examples / progress.seconds,
        "examples": progress.examples,
        "seconds": progress.seconds,
    }
    facts = report.Facts(
        metrics,
        _facts(settings, train, held_out, sizes, model),
        scores,
        progress.train,
        progress.held_out,
        worth,
    )
    artifacts.write(folder, model, facts)
    run_summary.metrics(console, metrics)
    where = escape(str(out))
    console.print(f"[dim]the report, the model and the metrics are in[/] [bold]{where}[/]")


def fit(
    model: tf.keras.Model,
    train: Source,
    held_out: Source,
    settings: Settings,
    logs: Path,
    console: Console,
) -> Report:
    """Trains for the given number of epochs; `held_out` is only looked at, nothing is chosen by it.

    Returns:
        What was seen on the way.
    """
    size, batch_size, rate = train.num_examples(), settings.batch_size, settings.learning_rate
    assert rate is not None
    model.compile(
        optimizers.create(settings.optimizer, rate, settings.epochs * -(-size // batch_size)),
        "binary_crossentropy",
        metrics=[tf.keras.metrics.AUC(name="auc")],
        steps_per_execution=STEPS_PER_EXECUTION,
        jit_compile=False,
    )
    progress = Report(console, size, batch_size)
    board = tf.keras.callbacks.TensorBoard(str(logs), write_graph=False, profile_batch=0)
    model.fit(
        train.dataset(batch_size, shuffle=True, seed=settings.seed),
        validation_data=held_out.dataset(LARGE_BATCH),
        epochs=settings.epochs,
        callbacks=[progress, board],
        shuffle=False,  # the reader has done it
        verbose=0,
    )
    return progress


def _learning_rate(settings: Settings) -> float:
    default = optimizers.learning_rate_of(settings.optimizer)
    rate = default if settings.learning_rate is None else settings.learning_rate
    if not 0 < rate < math.inf:
        raise UserError(f"--learning-rate must be a positive number, got {rate}")
    return rate


def _facts(
    settings: Settings,
    train: Source,
    held_out: Source,
    sizes: tuple[int, int],
    model: tf.keras.Model,
) -> dict[str, Any]:
    """The content of run.json: enough to open the data again, and to train again."""
    return {
        "twml_ops_run": FORMAT,
        **dataclasses.asdict(settings),
        "train_source": train.name,
        "eval_source": held_out.name,
        "train_examples": sizes[0],
        "eval_examples": sizes[1],
        "weights": int(model.count_params()),
        "finished": now(),
        "schema": dataclasses.asdict(train.schema),
        "versions": versions(),
    }


def now() -> str:
    """The time, as run.json has it."""
    return datetime.datetime.now().astimezone().isoformat(" ", "seconds")


def versions() -> dict[str, str]:
    """Of everything that has a say in the result."""
    return {
        "twml_ops": twml_ops.__version__,
        "tensorflow": tf.__version__,
        "keras": _keras.VERSION,
        "python": platform.python_version(),
    }
