"""Searches for the options of a model with the lowest loss on the validation data."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from twml_ops.data import TrainingParts, original_errors
from twml_ops.training.config import AUTO, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import check_balance
from twml_ops.training.model import with_defaults
from twml_ops.training.model_options import OptionSpace
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.results import Trial
from twml_ops.training.sources import open_pair
from twml_ops.training.trials import TrialStopped, run_trial, validation_parts

_STARTUP_TRIALS = 5  # as many random trials precede the sampler's model, and the first pruning


class Budget(NamedTuple):
    """The limits of a search.

    Attributes:
        trials: number of trials.
        seconds: duration after which no further trial starts; None: there is no limit.
    """

    trials: int
    seconds: float | None


def tune(config: RunConfig, budget: Budget, reporter: Reporter = SILENT) -> RunConfig:
    """Searches for options.

    Args:
        config: configuration with the data, the model, and the options that are not searched:
            `model_options`, and the learning rate if there is one.
        budget: when the search ends.
        reporter: is told what happens.

    Returns:
        The best configuration.

    Raises:
        UserError: Optuna is missing, an option is wrong, there are no validation data, or no trial
            succeeded.
        DataError: data cannot be read.
    """
    check_tuning(config)
    optuna = _import_optuna()
    config = dataclasses.replace(config, cluster=None)
    data, _ = open_pair(config.data, config.eval, schema_file=config.schema_file, uses=config.uses)
    reporter.columns(data)
    search_rate = config.learning_rate is None
    config = with_defaults(config, data.schema)
    # The result is for batches of one size, whatever the number of examples of a later run.
    config = dataclasses.replace(config, batch_size=config.fixed_batch_size)
    space = OptionSpace(config, search_rate)
    if not space.values:
        raise UserError("there is nothing to search: all options of the model are given")
    check_balance(config, data.schema)
    with original_errors(data), reporter.phase(f"reading {data.name}"):
        parts = validation_parts(config, data)
    if parts is None:
        raise UserError(
            "there are no validation data to compare trials on: use another --validation"
        )
    reporter.searched(data.name, config.model, space.values)
    reporter.trials(parts.validation.name, parts.validation.num_examples())
    with original_errors(data, *parts):
        best = _search(optuna, space, parts, config.seed, budget, reporter)
    return space.configuration(best)


def check_tuning(config: RunConfig) -> None:
    """Checks the options of a search.

    Raises:
        UserError: an option contradicts it, or Optuna is missing.
    """
    _import_optuna()
    if config.model == AUTO:
        raise UserError("--model auto: tune searches the options of one model; name it")
    if config.epochs is not None or config.validation == "none":
        option = "--validation none" if config.epochs is None else "--epochs"
        raise UserError(f"tune needs validation data, so it cannot go with {option}")


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as e:
        raise UserError('tune needs Optuna: pip install "twml_ops[tune]"') from e
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _search(
    optuna: Any,
    space: OptionSpace,
    parts: TrainingParts,
    seed: int,
    budget: Budget,
    reporter: Reporter,
) -> dict[str, Any]:
    """The drawn values of the best trial."""
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(n_startup_trials=_STARTUP_TRIALS, seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS),
    )
    study.enqueue_trial(space.defaults())
    trials: list[Trial] = []
    start = time.perf_counter()
    while len(trials) < budget.trials and not (
        trials and budget.seconds is not None and time.perf_counter() - start >= budget.seconds
    ):
        drawn = study.ask()
        config = space.suggest(drawn)
        with reporter.phase(f"trial {len(trials) + 1} of {budget.trials}"):
            trial = run_trial(config, parts, on_epoch=_prune(drawn)).trial
        best = all(trial.log_loss < other.log_loss for other in trials)
        trials.append(trial)
        if trial.outcome == "finished":
            study.tell(drawn, trial.log_loss)
        elif trial.outcome == "stopped":
            study.tell(drawn, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(drawn, state=optuna.trial.TrialState.FAIL)
        reporter.trial(len(trials), trial, best)
    if all(trial.outcome != "finished" for trial in trials):
        raise UserError(f"every trial failed, the first with: {trials[0].note}")
    found: dict[str, Any] = study.best_params
    return found


def _prune(drawn: Any) -> Callable[[int, float], None]:
    """Ends a trial whose best loss so far is above the median of the others at the same epoch."""

    def on_epoch(epoch: int, loss: float) -> None:
        drawn.report(loss, epoch)
        if drawn.should_prune():
            raise TrialStopped("above the median of the other trials")

    return on_epoch
