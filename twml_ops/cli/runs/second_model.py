"""The model with which a run compares its default model on the validation data.

The default, `dcn`, has narrow vectors and strong dropout, which suits rows whose single features
and statistics decide. Where pairs of ids decide, as users and films in ratings, the products of
wider, weakly regularized vectors are better.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.console import Console

from twml_ops.cli.render import trial_table
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.model_choice import ModelChoice
from twml_ops.cli.results.trial import Trial
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.config import DEFAULT, RunConfig
from twml_ops.cli.runs.trial import run_trial
from twml_ops.cli.runs.trial_result import TrialResult
from twml_ops.cli.runs.trial_store import KeptTrials
from twml_ops.data import Schema, TrainingParts

MODEL = "deepfm"
OPTIONS = {"l2": 0.003, "linear_l2": 0.003, "embedding_dropout": 0.0}


def second_model(config: RunConfig, schema: Schema) -> RunConfig | None:
    """The configuration with the second model.

    Args:
        config: what the user chose.
        schema: the features.

    Returns:
        The configuration; None if the user chose the model, if the run goes on with another one, if
        the weights of early stopping are kept (only one model has such weights), if tables are in
        files, or if there are fewer than two categorical features, whose pairs the model is for.
    """
    unsuitable = config.from_run is not None or config.storage is not None or not config.refit
    if config.model != DEFAULT or unsuitable or len(schema.categorical) < 2:
        return None
    return dataclasses.replace(config, model=MODEL, model_options=dict(OPTIONS))


def try_second_model(
    config: RunConfig,
    parts: TrainingParts,
    log_dir: Path,
    console: Console,
    checkpoints: RunCheckpoints | None,
) -> TrialResult:
    """Trains the second model with early stopping, unless an earlier process of the run has.

    Args:
        config: configuration with the second model.
        parts: training data and validation data.
        log_dir: folder of its TensorBoard logs.
        console: terminal for the output.
        checkpoints: the checkpoints of the run, which keep the result; None: it is not kept.

    Raises:
        DataError: the data cannot be read.
    """
    kept = checkpoints.load_trials() if checkpoints else None
    if kept and kept.results:
        return kept.results[0]
    with console.status(f"trying {config.model}"):
        result = run_trial(config, parts, log_dir=log_dir)
    if checkpoints:
        checkpoints.keep_trials(KeptTrials([result], result.trial.seconds))
    return result


def compared(
    config: RunConfig, choice: EpochChoice, second: TrialResult, console: Console
) -> tuple[RunConfig, EpochChoice, ModelChoice]:
    """The better one of two models, by the log loss on the validation data.

    Args:
        config: configuration with the default model.
        choice: its number of epochs, or what an earlier process of the run chose after this
            comparison.
        second: the trial of the second model.
        console: terminal for the output.

    Returns:
        (its configuration, its number of epochs, both trials).
    """
    assert config.learning_rate is not None
    losses = tuple(e.metrics["val_loss"] for e in choice.history.epochs)
    seconds = choice.history.seconds
    first = Trial(
        config.model, config.model_options, config.learning_rate, losses, seconds, "finished"
    )
    is_second = second.choice is not None and second.trial.log_loss <= choice.log_loss
    known = losses != second.trial.losses  # else the run is continued after the comparison
    trials = (first, second.trial) if known else (second.trial,)
    model_choice = ModelChoice(trials, sum(t.seconds for t in trials), None)
    trial_table.print_second(console, second.trial, choice.log_loss, is_second)
    if not is_second:
        return config, choice, model_choice
    assert second.choice is not None
    return second.config, dataclasses.replace(second.choice, refit=config.refit), model_choice
