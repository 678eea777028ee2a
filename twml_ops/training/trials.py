"""Trains on one part of the data and judges on the other: the number of epochs, and trials."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops._phases import phase
from twml_ops.data import DataError, Source, TrainingParts, split_for_validation
from twml_ops.training.callbacks import EarlyStopping, mean_losses
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import training_examples
from twml_ops.training.model import (
    MakeModel,
    for_trial,
    model_maker,
    report_model,
    with_learning_rate,
)
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.results import EpochChoice, FittedModel, Outcome, Trial, TrialResult
from twml_ops.training.runners import MakeRunner, Monitored, Runner, local_runner

MIN_EXAMPLES = 100  # of validation data; the losses of fewer differ by chance


def validation_parts(config: RunConfig, train: Source) -> TrainingParts | None:
    """Divides the training data as the configuration says.

    Args:
        config: configuration of the run.
        train: training data.

    Returns:
        The parts, both without the negatives that are not used for training; None if the number of
        epochs is given, if there is to be no validation, or if the validation data
        would be fewer than `MIN_EXAMPLES` and the user did not ask for them.

    Raises:
        UserError: options contradict each other, or the data cannot be divided as they say.
        DataError: the data cannot be read.
    """
    if config.epochs is not None:
        if config.validation not in ("auto", "none"):
            raise UserError(
                "--epochs fixes the number of epochs and --validation chooses it: use one of them "
                "(--max-epochs limits the choice)"
            )
        return None
    if config.validation == "none":
        return None
    share = config.validation_share
    if config.validation == "auto" and train.num_examples() * share < MIN_EXAMPLES:
        return None
    try:
        # The cast is checked by the function.
        parts = split_for_validation(train, config.validation, share)  # type: ignore[arg-type]
    except ValueError as e:
        raise UserError(f"--validation {config.validation}: {e}") from e
    sampled = TrainingParts(*(training_examples(config, part) for part in parts))
    for part in sampled if config.negative_rate < 1 else ():
        if not part.num_examples():
            raise UserError(
                f"--negative-rate {config.negative_rate:g}: nothing is left of {part.name}: use a "
                "higher rate, or --epochs, which needs no validation data"
            )
    return sampled


def choose_epochs(
    config: RunConfig,
    runner: Runner,
    make_model: MakeModel,
    parts: TrainingParts,
    reporter: Reporter,
    callbacks: Sequence[tf.keras.callbacks.Callback] = (),
    target: float | None = None,
) -> tuple[EpochChoice, FittedModel | None]:
    """Trains on one part until the loss on the other one no longer decreases.

    Args:
        config: configuration of the run.
        runner: where to train.
        make_model: returns an untrained model that is adapted to a source.
        parts: training data and validation data.
        reporter: is told what happens.
        callbacks: Keras callbacks beside that of early stopping.
        target: the loss of another model, see `EarlyStopping`; None: there is none.

    Returns:
        (the choice, the model with the weights of the best epoch or, if there is to be a refit,
        None).

    Raises:
        UserError: the loss is NaN or infinite.
    """
    fit, validation = parts
    sizes = fit.num_examples(), validation.num_examples()
    with phase("model"):
        model = runner.build(lambda: make_model(fit))
    report_model(reporter, model, config.optimizer)
    reporter.validation(fit, validation, sizes)
    stopping = EarlyStopping(config.patience, not config.refit, target)
    fitted = runner.fit(
        model,
        fit,
        Monitored(validation, "validation"),
        epochs=config.max_epochs,
        callbacks=[stopping, *callbacks],
    )
    choice = EpochChoice(
        fit.name,
        validation.name,
        *sizes,
        stopping.best_epoch,
        stopping.best_loss,
        config.refit,
        fitted.history,
    )
    reporter.epochs_chosen(choice)
    return choice, None if config.refit else fitted


OnEpoch = Callable[[int, float], None]
"""Called after each epoch with its number, from 1, and the loss on the validation data."""


class TrialStopped(Exception):
    """Raised by an `OnEpoch` to end the trial. Its message says why."""


def run_trial(
    config: RunConfig,
    parts: TrainingParts,
    *,
    log_dir: Path | None = None,
    on_epoch: OnEpoch = lambda epoch, loss: None,
    make_runner: MakeRunner = local_runner,
) -> TrialResult:
    """Trains a model with early stopping, as `twml-ops train` does to choose the number of epochs.

    Args:
        config: configuration with the model and the options to try.
        parts: training data and validation data.
        log_dir: folder of the TensorBoard logs; None: there are none.
        on_epoch: called after each epoch. It may raise `TrialStopped`.
        make_runner: says where to train.

    Returns:
        The result. Options that the model refuses, and a loss that is NaN or infinite, are the
        outcome "failed".

    Raises:
        DataError: the data cannot be read.
    """
    config = with_learning_rate(dataclasses.replace(config, refit=True))
    assert config.learning_rate is not None
    quiet = SILENT
    losses: list[float] = []

    def record(epoch: int, loss: float) -> None:
        losses.append(loss)
        on_epoch(epoch, loss)

    start = time.perf_counter()
    outcome: Outcome = "finished"
    choice, note = None, ""
    try:
        runner = make_runner(config, log_dir, quiet)
        callbacks = [_EachEpoch(record)]
        make = model_maker(for_trial(config, parts.fit.num_examples()))
        choice, _ = choose_epochs(config, runner, make, parts, quiet, callbacks)
    except TrialStopped as e:
        outcome, note = "stopped", str(e)
    except DataError:
        raise
    except (UserError, ValueError) as e:
        outcome, note = "failed", " ".join(str(e).split())
    trial = Trial(
        config.model,
        config.model_options,
        config.learning_rate,
        tuple(loss if math.isfinite(loss) else math.inf for loss in losses),
        time.perf_counter() - start,
        outcome,
        note,
    )
    return TrialResult(trial, config, choice)


class _EachEpoch(tf.keras.callbacks.Callback):
    def __init__(self, record: OnEpoch) -> None:
        super().__init__()
        self._record = record

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._record(epoch + 1, mean_losses(logs)["val_loss"])
