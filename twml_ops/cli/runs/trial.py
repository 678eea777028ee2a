"""One trial of a search: trains on one part of the training data, judges on the other one."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console

from twml_ops.cli.errors import UserError
from twml_ops.cli.results.trial import Outcome, Trial
from twml_ops.cli.runs.callbacks import mean_losses
from twml_ops.cli.runs.choose_epochs import choose_epochs
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.local_runner import LocalRunner
from twml_ops.cli.runs.make_model import model_maker, with_learning_rate
from twml_ops.cli.runs.trial_result import TrialResult
from twml_ops.data import DataError, TrainingParts

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
) -> TrialResult:
    """Trains a model with early stopping, as `twml-ops train` does to choose the number of epochs.

    Args:
        config: configuration with the model and the options to try.
        parts: training data and validation data.
        log_dir: folder of the TensorBoard logs; None: there are none.
        on_epoch: called after each epoch. It may raise `TrialStopped`.

    Returns:
        The result. Options that the model refuses, and a loss that is NaN or infinite, are the
        outcome "failed".

    Raises:
        DataError: the data cannot be read.
    """
    config = with_learning_rate(dataclasses.replace(config, refit=True))
    assert config.learning_rate is not None
    quiet = Console(quiet=True)
    losses: list[float] = []

    def record(epoch: int, loss: float) -> None:
        losses.append(loss)
        on_epoch(epoch, loss)

    start = time.perf_counter()
    outcome: Outcome = "finished"
    choice, note = None, ""
    try:
        runner = LocalRunner(config, log_dir, quiet)
        callbacks = [_EachEpoch(record)]
        choice, _ = choose_epochs(config, runner, model_maker(config), parts, quiet, callbacks)
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
