"""`twml-ops train`: trains a model, evaluates it, and writes the folder of the run."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path

import tensorflow as tf
from rich.markup import escape

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import run_summary
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.results.run_result import RunResult
from twml_ops.cli.runs import artifacts, cluster, evaluator, optimizers
from twml_ops.cli.runs.cluster_runner import ClusterRunner
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.evaluate import importances_of, score_source, throughput
from twml_ops.cli.runs.folder import TENSORBOARD, new_folder
from twml_ops.cli.runs.local_runner import LocalRunner
from twml_ops.cli.runs.run_facts import training_facts
from twml_ops.cli.runs.runner import Runner
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE, open_pair
from twml_ops.data import original_errors


def run_task(config: RunConfig, out: Path, overwrite: bool) -> None:
    """Does what this process has to do for a training run.

    Without parameter servers in `TF_CONFIG` this process trains alone and ignores `config.cluster`.
    Otherwise it does its task in the cluster, where only the chief writes the folder of the run.

    Args:
        config: configuration of the run.
        out: folder to create.
        overwrite: replace a finished run in `out`.

    Raises:
        UserError: the configuration is invalid, or the loss became NaN.
        ValueError: the model is unknown, or data cannot be read.
    """
    role = cluster.role()
    if role == "ps":
        cluster.run_server()
    elif role == "evaluator":
        evaluator.evaluate_checkpoints(config, out, overwrite)
    elif role == "worker":
        train(config, out, out)
    else:
        if role == "alone":
            config = dataclasses.replace(config, cluster=None)
        with new_folder(out, overwrite) as folder:
            train(config, folder, out)


def train(config: RunConfig, folder: Path, out: Path) -> RunResult:
    """Trains and evaluates a model, and writes the files of the run.

    Args:
        config: configuration of the run.
        folder: folder to write to.
        out: final name of `folder`.

    Raises:
        UserError: the configuration is invalid, or the loss became NaN.
        ValueError: the model is unknown, or data cannot be read.
    """
    console = make_console()
    make_model = models.get(config.model)
    config = with_learning_rate(config)
    runner: Runner
    if config.cluster is None:
        runner = LocalRunner(config, folder / TENSORBOARD, console)
    else:
        runner = ClusterRunner(config, folder, out, console)
    runner.connect()
    data, held_out = open_pair(config.data, config.eval)
    tf.keras.utils.set_random_seed(config.seed)
    with original_errors(data, held_out):
        with console.status(f"reading {escape(data.name)}"):
            sizes = data.num_examples(), held_out.num_examples()
            batches = data.dataset(LARGE_BATCH_SIZE, layout=models.layout_of(make_model))
            model = runner.build(partial(make_model, data.schema, batches))
        run_summary.print_data(console, data, held_out, sizes)
        run_summary.print_model(console, model.name, model.count_params(), config.optimizer)
        # The evaluation data is only monitored: nothing is chosen by it.
        fitted = runner.fit(model, data, held_out, epochs=config.epochs)
        scores = score_source(fitted.model, held_out, console, sizes[1])
        importances = importances_of(fitted.model, held_out, config.seed, console)
    history, weights = fitted.history, int(fitted.model.count_params())
    result = RunResult(
        fitted.model,
        history,
        scores,
        {**scoring.metrics(scores), **throughput(history.examples, history.seconds)},
        importances,
        training_facts(config, data, held_out, sizes, weights),
    )
    artifacts.write(folder, result)
    run_summary.print_result(console, result, "the report, the model and the metrics", out)
    return result


def with_learning_rate(config: RunConfig) -> RunConfig:
    """The configuration with the learning rate of its optimizer where the user chose none.

    Raises:
        UserError: the optimizer is unknown, or the learning rate is not a positive number.
    """
    rate = optimizers.learning_rate_of(config.optimizer)
    if config.learning_rate is not None:
        rate = config.learning_rate
    if not 0 < rate < math.inf:
        raise UserError(f"--learning-rate must be a positive number, got {rate}")
    return dataclasses.replace(config, learning_rate=rate)
