"""`twml-ops train`: trains a model, evaluates it, and writes the folder of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path

import tensorflow as tf
from rich.console import Console
from rich.markup import escape

from twml_ops import _keras, models
from twml_ops.analysis import scoring
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import run_summary
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.run_result import RunResult
from twml_ops.cli.runs import artifacts, cluster, evaluator, optimizers
from twml_ops.cli.runs.checkpoint_options import NO_CHECKPOINTS, CheckpointOptions
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.choose_epochs import choose_epochs, validation_parts
from twml_ops.cli.runs.class_balance import check as check_balance
from twml_ops.cli.runs.class_balance import corrected, training_examples, weighted
from twml_ops.cli.runs.cluster_runner import ClusterRunner
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.evaluate import importances_of, score_source, throughput
from twml_ops.cli.runs.folder import TENSORBOARD, new_folder
from twml_ops.cli.runs.local_runner import LocalRunner
from twml_ops.cli.runs.model_options import builder_of
from twml_ops.cli.runs.run_facts import training_facts
from twml_ops.cli.runs.runner import FittedModel, MakeModel, Monitored, Runner
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE, open_pair
from twml_ops.cli.runs.warm_start import WarmStart
from twml_ops.data import Source, original_errors


def run_task(
    config: RunConfig,
    out: Path,
    overwrite: bool,
    checkpoints: CheckpointOptions = NO_CHECKPOINTS,
) -> None:
    """Does what this process has to do for a training run.

    Without parameter servers in `TF_CONFIG` this process trains alone and ignores `config.cluster`.
    Otherwise it does its task in the cluster, where only the chief writes the folder of the run.

    Args:
        config: configuration of the run.
        out: folder to create.
        overwrite: replace a finished run in `out`.
        checkpoints: when a run in one process writes checkpoints, and whether it continues.

    Raises:
        UserError: the configuration is invalid, the loss became NaN, or a signal ended the run.
        ValueError: the model is unknown, or data cannot be read.
    """
    role = cluster.role()
    if role == "ps":
        cluster.run_server()
    elif role == "evaluator":
        evaluator.evaluate_checkpoints(config, out, overwrite)
    elif role == "worker":
        train(config, out, out)
    elif role == "alone":
        config = with_learning_rate(dataclasses.replace(config, cluster=None))
        with new_folder(out, overwrite) as folder:
            saved = RunCheckpoints(cluster.checkpoint_dir(out), config, checkpoints, overwrite)
            with contextlib.closing(saved):
                train(config, folder, out, saved)
        saved.remove()
    else:
        with new_folder(out, overwrite) as folder:
            train(config, folder, out)


def train(
    config: RunConfig, folder: Path, out: Path, checkpoints: RunCheckpoints | None = None
) -> RunResult:
    """Trains and evaluates a model, and writes the files of the run.

    Args:
        config: configuration of the run.
        folder: folder to write to.
        out: final name of `folder`.
        checkpoints: those of the run, if it is trained in this process; None: none are written.

    Raises:
        UserError: the configuration is invalid, or the loss became NaN.
        ValueError: the model is unknown, or data cannot be read.
    """
    console = make_console()
    config = with_learning_rate(config)
    start = WarmStart(config) if config.from_run is not None else None
    make_model = start.make_model if start else _builder(config)
    runner: Runner
    if config.cluster is None:
        runner = LocalRunner(config, folder / TENSORBOARD, console, checkpoints)
    else:
        runner = ClusterRunner(config, folder, out, console)
    runner.connect()
    like = start.schema if start else None
    data, held_out = open_pair(config.data, config.eval, like, config.schema_file)
    check_balance(config, data.schema)
    with original_errors(data, held_out), console.status(f"reading {escape(data.name)}"):
        parts = validation_parts(config, data)
        data = training_examples(config, data)
        sizes = data.num_examples(), held_out.num_examples()
    run_summary.print_data(console, data, held_out, sizes)
    choice = checkpoints.choice if checkpoints else None
    fitted: FittedModel | None = None
    if parts is not None and choice is None:
        logs = folder / TENSORBOARD / ("early_stopping" if config.refit else "")
        with original_errors(data, *parts):
            choice, fitted = choose_epochs(
                config, LocalRunner(config, logs, console, checkpoints), make_model, parts, console
            )
        if checkpoints:
            checkpoints.choice = choice
    with original_errors(data, held_out):
        if fitted is None:
            fitted = _fit(config, runner, make_model, data, held_out, choice, console)
        fitted = fitted._replace(model=corrected(fitted.model, config))
        scores = score_source(fitted.model, held_out, console, sizes[1])
        importances = importances_of(fitted.model, held_out, config.seed, console)
    histories = [fitted.history] + ([choice.history] if choice and choice.refit else [])
    speed = throughput(sum(h.examples for h in histories), sum(h.seconds for h in histories))
    validation = {"validation_log_loss": choice.log_loss} if choice else {}
    trained_on = (data.name, sizes[0])
    if choice and not choice.refit:
        trained_on = (choice.fit_source, choice.fit_examples)
    result = RunResult(
        fitted.model,
        fitted.history,
        scores,
        {**scoring.metrics(scores), **validation, **speed},
        importances,
        training_facts(
            config, data.schema, trained_on, (held_out.name, sizes[1]), fitted.model, choice
        ),
        epoch_choice=choice,
    )
    artifacts.write(folder, result)
    run_summary.print_result(console, result, "the report, the model and the metrics", out)
    return result


def _builder(config: RunConfig) -> MakeModel:
    """A function that builds the model of a run, always from the same random numbers."""
    build = builder_of(config.model)
    layout = models.layout_of(build)

    def make_model(source: Source) -> tf.keras.Model:
        # Also resets the names of layers, which count up, and releases an earlier model.
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(config.seed)
        _keras.keep_random_state_in_variables()  # so that checkpoints have it
        batches = source.dataset(LARGE_BATCH_SIZE, layout=layout)
        batches = weighted(batches, config.positive_weight)
        return build(source.schema, batches, **config.model_options)

    return make_model


def _fit(
    config: RunConfig,
    runner: Runner,
    make_model: MakeModel,
    data: Source,
    held_out: Source,
    choice: EpochChoice | None,
    console: Console,
) -> FittedModel:
    """Trains on all training data, for the chosen or the given number of epochs."""
    model = runner.build(lambda: make_model(data))
    if choice is not None:
        return runner.fit(model, data, None, epochs=choice.epochs)
    run_summary.print_model(console, model.name, model.count_params(), config.optimizer)
    # The evaluation data is only monitored: nothing is chosen by it.
    return runner.fit(model, data, Monitored(held_out, "evaluation"), epochs=config.fixed_epochs)


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
