"""What a run chooses on the validation data before its final training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.model_choice import ModelChoice
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.choose_epochs import choose_epochs
from twml_ops.cli.runs.choose_model import choose_model
from twml_ops.cli.runs.config import AUTO, RunConfig
from twml_ops.cli.runs.ensemble import without_optimizer
from twml_ops.cli.runs.local_runner import LocalRunner
from twml_ops.cli.runs.make_model import model_maker
from twml_ops.cli.runs.runner import FittedModel
from twml_ops.cli.runs.second_model import compared, try_second_model
from twml_ops.cli.runs.trial_result import TrialResult
from twml_ops.data import Source, TrainingParts, original_errors


class Choices(NamedTuple):
    """The choices of a run.

    Attributes:
        config: the configuration, with the chosen model and its options.
        parts: training data in two parts; None: nothing was chosen.
        epochs: how the number of epochs was chosen; None: it is given.
        model: how the model was chosen; None: it is given.
        kept: the model that early stopping has trained, if it is the model of the run.
    """

    config: RunConfig
    parts: TrainingParts | None
    epochs: EpochChoice | None = None
    model: ModelChoice | None = None
    kept: FittedModel | None = None


def choose(
    config: RunConfig,
    data: Source,
    parts: TrainingParts | None,
    logs: Path,
    console: Console,
    checkpoints: RunCheckpoints | None = None,
    second: RunConfig | None = None,
) -> Choices:
    """Chooses the model if it is "auto", and the number of epochs if there are validation data.

    A default model is compared with a second one.

    Args:
        config: configuration of the run.
        data: training data.
        parts: the same in two parts; None: there are no validation data.
        logs: folder of the TensorBoard logs of the run.
        console: terminal for the output.
        checkpoints: the checkpoints of the run, with what was chosen before the run was stopped;
            None: there are none.
        second: configuration with the second model; None: there is none.

    Raises:
        UserError: there are no validation data to choose a model, or no model can be trained.
        DataError: the data cannot be read.
    """
    before = checkpoints.choice if checkpoints else None
    chosen = Choices(config, parts, before)
    with original_errors(data, *(parts or ())):
        if config.model == AUTO:
            config, epochs, model = _choose_model(config, data, parts, logs, console, checkpoints)
            chosen = Choices(config, parts, before or epochs, model)
            if checkpoints and config.refit:
                checkpoints.choice = chosen.epochs
        trial = None
        if second is not None and parts is not None:
            trial = _try_second_model(second, parts, logs, console, checkpoints)
        if before is None and parts is not None and (chosen.epochs is None or not config.refit):
            epochs, kept = _choose_epochs(config, parts, logs, console, checkpoints)
            chosen = chosen._replace(epochs=epochs, kept=kept)
    if trial is not None and chosen.epochs is not None:
        config, epochs, model = compared(config, chosen.epochs, trial, console)
        chosen = chosen._replace(config=config, epochs=epochs, model=model)
        if checkpoints:
            checkpoints.choice = epochs
    return chosen


def _choose_epochs(
    config: RunConfig,
    parts: TrainingParts,
    logs: Path,
    console: Console,
    checkpoints: RunCheckpoints | None,
) -> tuple[EpochChoice, FittedModel | None]:
    logs = logs / ("early_stopping" if config.refit else "")
    runner = LocalRunner(config, logs, console, checkpoints)
    epochs, kept = choose_epochs(config, runner, model_maker(config), parts, console)
    if kept is not None:
        kept = kept._replace(model=without_optimizer(kept.model))
    if checkpoints:
        checkpoints.choice = epochs
    return epochs, kept


def _try_second_model(
    config: RunConfig,
    parts: TrainingParts,
    logs: Path,
    console: Console,
    checkpoints: RunCheckpoints | None,
) -> TrialResult:
    with _continued(checkpoints):
        return try_second_model(config, parts, logs / "second_model", console, checkpoints)


def _choose_model(
    config: RunConfig,
    data: Source,
    parts: TrainingParts | None,
    logs: Path,
    console: Console,
    checkpoints: RunCheckpoints | None,
) -> tuple[RunConfig, EpochChoice, ModelChoice]:
    with _continued(checkpoints):
        return choose_model(config, data.schema, parts, logs / "trials", console, checkpoints)


@contextlib.contextmanager
def _continued(checkpoints: RunCheckpoints | None) -> Iterator[None]:
    """Turns the end of a search by a signal into an error that says how to continue it."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoints is None or not checkpoints.wanted:
            raise
        raise checkpoints.interrupted() from None
