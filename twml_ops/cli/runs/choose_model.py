"""`--model auto`: chooses a model and its options by the loss on the validation data."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from twml_ops import models
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import trial_table
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.model_choice import ModelChoice
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.choose_crosses import with_crosses
from twml_ops.cli.runs.config import DEFAULT, DEFAULT_TIME_LIMIT, RunConfig
from twml_ops.cli.runs.make_model import with_learning_rate
from twml_ops.cli.runs.model_options import options_of
from twml_ops.cli.runs.second_model import second_model
from twml_ops.cli.runs.trial import TrialStopped, run_trial
from twml_ops.cli.runs.trial_result import TrialResult
from twml_ops.cli.runs.trial_store import KeptTrials
from twml_ops.data import Schema, TrainingParts

_MODELS = ("dcn", "deepfm", "sparse_mlp", "logistic")
_OF_FIELDS = ("deepfm",)  # they multiply the vectors of several fields

LEARNING_RATE = "learning_rate"
_RATE_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the default learning rate
_LADDERS: dict[str, Sequence[float]] = {
    "statistics": (False, True),
    "linear_l2": (0.0, 0.0001, 0.001, 0.01, 0.1),
    "l2": (0.0, 0.0001, 0.001, 0.01, 0.1),
    "dropout": (0.0, 0.25, 0.5, 0.75),
    "embedding_dropout": (0.0, 0.25, 0.5, 0.75),
    "units": (1, 2, 4, 8, 16, 32, 64, 128),
    "min_count": (1, 2, 3, 5, 10, 20),
}
"""Values of the options of models, in the order in which they are improved."""


def _names(schema: Schema) -> list[str]:
    """The models to try. The first one, which is always finished, is the default."""
    first = models.default_name(schema)
    several = len(schema.continuous) + len(schema.categorical) > 1
    return [first, *(n for n in _MODELS if n != first and (several or n not in _OF_FIELDS))]


def check(config: RunConfig) -> None:
    """Checks the options that go with `--model auto`.

    Raises:
        UserError: an option contradicts it.
    """
    if config.model_options:
        raise UserError("model_options: --model auto chooses them; name a model to set them")
    if config.epochs is not None or config.validation == "none":
        option = "--validation none" if config.epochs is None else "--epochs"
        raise UserError(f"--model auto needs validation data, so it cannot go with {option}")
    if config.time_limit is not None and not config.time_limit > 0:
        raise UserError(f"--time-limit must be positive, got {config.time_limit:g}")


def choose_model(
    config: RunConfig,
    schema: Schema,
    parts: TrainingParts | None,
    log_dir: Path,
    console: Console,
    checkpoints: RunCheckpoints | None = None,
) -> tuple[RunConfig, EpochChoice, ModelChoice]:
    """Tries models, then changes one option of the best one at a time.

    First each model that fits the features is trained with its defaults. Then the learning rate
    and the other options of the best model are improved in turn: a value is replaced by the next
    lower or higher one of a fixed series for as long as the loss decreases. No trial starts after
    the time limit, and one that is not finished by then does not count; the first is always
    finished.

    Args:
        config: configuration of the run, with the model "auto".
        schema: the features.
        parts: training data and validation data; None: there are too few examples.
        log_dir: folder of the TensorBoard logs, with one folder for each trial.
        console: terminal for the output.
        checkpoints: the checkpoints of the run, which keep the trials that are done. A run that is
            continued does not repeat them, and their time counts. None: none are kept.

    Returns:
        (the configuration with the chosen model, its number of epochs, the trials).

    Raises:
        UserError: there are no validation data, or no trial succeeded.
        DataError: the data cannot be read.
    """
    if parts is None:
        raise UserError("--model auto needs validation data, for which there are too few examples")
    search = _Search(config, parts, log_dir, console, checkpoints)
    trial_table.print_header(console, parts.validation.name, parts.validation.num_examples())
    for name in _names(schema):
        search.attempt(dataclasses.replace(config, model=name))
    if second := second_model(dataclasses.replace(config, model=DEFAULT, refit=True), schema):
        search.attempt(second)
    best = search.best
    if best is None:
        raise UserError(f"--model auto: every model failed, the first with: {search.first_note}")
    for option in _options(best.config, config.learning_rate is None):
        for direction in (-1, 1):
            improved = False
            while (candidate := search.neighbor(option, direction)) and search.attempt(candidate):
                improved = True
            if improved:
                break
    found = search.best
    assert found is not None
    assert found.choice is not None
    choice = search.result()
    trial_table.print_best(console, choice)
    chosen = dataclasses.replace(found.config, refit=config.refit, time_limit=None)
    return chosen, dataclasses.replace(found.choice, refit=config.refit), choice


def _options(config: RunConfig, any_learning_rate: bool) -> Iterator[str]:
    """The options of the model that are improved: the ones that have a ladder of values."""
    if any_learning_rate:
        yield LEARNING_RATE
    known = options_of(models.get(config.model))
    yield from (name for name in _LADDERS if name in known)


class _Search:
    """The trials so far, and the best of them."""

    def __init__(
        self,
        config: RunConfig,
        parts: TrainingParts,
        log_dir: Path,
        console: Console,
        checkpoints: RunCheckpoints | None,
    ) -> None:
        self._parts, self._log_dir, self._console = parts, log_dir, console
        self._given, self._limit = config, config.time_limit or DEFAULT_TIME_LIMIT
        self._checkpoints = checkpoints
        kept = checkpoints.load_trials() if checkpoints else None
        self._earlier = list(kept.results) if kept else []  # in the order of the attempts
        self._start = time.perf_counter() - (kept.seconds if kept else 0.0)
        self._results: list[TrialResult] = []
        self.best: TrialResult | None = None

    @property
    def first_note(self) -> str:
        """The reason why the first trial failed."""
        return self._results[0].trial.note

    def result(self) -> ModelChoice:
        """The record of all trials."""
        trials = tuple(result.trial for result in self._results)
        return ModelChoice(trials, self._elapsed(), self._limit)

    def attempt(self, config: RunConfig) -> bool:
        """Does a trial if there is time for one; whether it is the best one so far."""
        if self._earlier:
            result = self._earlier.pop(0)
        elif self.best is not None and self._elapsed() >= self._limit:
            return False
        else:
            result = self._run(config)
        self._results.append(result)
        best = self.best is None or result.trial.log_loss < self.best.trial.log_loss
        better = result.choice is not None and best
        if better:
            self.best = result
        if self._checkpoints and not self._earlier:
            self._checkpoints.keep_trials(KeptTrials(self._results, self._elapsed()))
        trial_table.print_trial(self._console, len(self._results), result.trial, better)
        return better

    def _run(self, config: RunConfig) -> TrialResult:
        log_dir = self._log_dir / f"{len(self._results) + 1}_{config.model}"
        with self._console.status(f"trying {config.model}"):
            config = with_crosses(config, self._parts, Console(quiet=True))
            return run_trial(
                config, self._parts, log_dir=log_dir, on_epoch=self._stop_after_the_limit
            )

    def neighbor(self, option: str, direction: int) -> RunConfig | None:
        """The best configuration with the next value of an option; None: there is none."""
        assert self.best is not None
        config = self.best.config
        if option == LEARNING_RATE:
            rate = _next(self._learning_rates(), config.learning_rate or 0.0, direction)
            return None if rate is None else dataclasses.replace(config, learning_rate=rate)
        default = options_of(models.get(config.model))[option].default
        value = _next(_LADDERS[option], config.model_options.get(option, default), direction)
        if value is None:
            return None
        options = {**config.model_options, option: value}
        return dataclasses.replace(config, model_options=options)

    def _learning_rates(self) -> list[float]:
        assert self.best is not None
        default = dataclasses.replace(self._given, model=self.best.config.model)
        return [
            factor * (with_learning_rate(default).learning_rate or 0.0) for factor in _RATE_FACTORS
        ]

    def _stop_after_the_limit(self, epoch: int, loss: float) -> None:
        if self.best is not None and self._elapsed() >= self._limit:
            raise TrialStopped(f"the time limit of {self._limit:g} s")

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start


def _next(ladder: Sequence[float], value: float, direction: int) -> float | None:
    """The nearest item of an ascending series below or above a value."""
    if direction < 0:
        return max((item for item in ladder if item < value), default=None)
    return min((item for item in ladder if item > value), default=None)
