"""What a run chooses on the validation data: crosses, the model, its options, the epochs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from twml_ops import models
from twml_ops._phases import phase
from twml_ops.data import Schema, Source, TrainingParts, original_errors
from twml_ops.training.checkpoints import RunCheckpoints
from twml_ops.training.config import AUTO, DEFAULT, DEFAULT_TIME_LIMIT, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.kept_results import KeepsTrials, KeptTrials
from twml_ops.training.labels import weighted
from twml_ops.training.model import for_trial, model_maker, with_learning_rate, without_optimizer
from twml_ops.training.model_options import LEARNING_RATE, builder_of, options_of
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.results import (
    TREE_SHARE,
    EpochChoice,
    FittedModel,
    ModelChoice,
    Trial,
    TrialResult,
)
from twml_ops.training.runners import MakeRunner, below, local_runner
from twml_ops.training.sources import LARGE_BATCH_SIZE
from twml_ops.training.trials import TrialStopped, choose_epochs, run_trial


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
    logs: Path | None,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None = None,
    second: RunConfig | None = None,
    make_runner: MakeRunner = local_runner,
    trials: KeepsTrials | None = None,
    shared: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> Choices:
    """Chooses the model if it is "auto", and the number of epochs if there are validation data.

    A default model is compared with a second one.

    Args:
        config: configuration of the run.
        data: training data.
        parts: the same in two parts; None: there are no validation data.
        logs: folder of the TensorBoard logs of the run; None: there are none.
        reporter: is told what happens.
        checkpoints: the checkpoints of the run, with what was chosen before the run was stopped;
            None: there are none.
        second: configuration with the second model; None: there is none.
        make_runner: says where to train; `--model auto` trains in this process.
        trials: keeps the trials of `--model auto`; None: `checkpoints` do.
        shared: the configuration with which several processes train a model that was chosen.

    Raises:
        UserError: there are no validation data to choose a model, or no model can be trained.
        DataError: the data cannot be read.
    """
    before = checkpoints.choice if checkpoints else None
    chosen = Choices(config, parts, before)
    with original_errors(data, *(parts or ())):
        if config.model == AUTO:
            config, epochs, model = _choose_model(
                config, data, parts, logs, reporter, checkpoints, trials or checkpoints
            )
            config = shared(config)
            chosen = Choices(config, parts, before or epochs, model)
            if checkpoints and config.refit:
                checkpoints.choice = chosen.epochs
        trial = None
        if second is not None and parts is not None:
            trial = _try_second_model(second, parts, logs, reporter, checkpoints, make_runner)
        if before is None and parts is not None and (chosen.epochs is None or not config.refit):
            target = None if trial is None else trial.trial.log_loss
            epochs, kept = _choose_epochs(
                config, parts, logs, reporter, checkpoints, target, make_runner
            )
            chosen = chosen._replace(epochs=epochs, kept=kept)
    if trial is not None and chosen.epochs is not None:
        config, epochs, model = compared(config, chosen.epochs, trial, reporter)
        chosen = chosen._replace(config=config, epochs=epochs, model=model)
        if checkpoints:
            checkpoints.choice = epochs
    return _with_tree_share(chosen)


def _with_tree_share(chosen: Choices) -> Choices:
    """The choices with the share of the trees that was best after the chosen number of epochs."""
    if chosen.epochs is None or chosen.epochs.tree_share is None:
        return chosen
    options = {**chosen.config.model_options, TREE_SHARE: chosen.epochs.tree_share}
    return chosen._replace(config=dataclasses.replace(chosen.config, model_options=options))


def _choose_epochs(
    config: RunConfig,
    parts: TrainingParts,
    logs: Path | None,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None,
    target: float | None,
    make_runner: MakeRunner,
) -> tuple[EpochChoice, FittedModel | None]:
    logs = below(logs, "early_stopping") if config.refit else logs
    runner = make_runner(config, logs, reporter, checkpoints, final=not config.refit)
    make = model_maker(for_trial(config, parts.fit.num_examples()))
    with phase("choice of the epochs"):
        epochs, kept = choose_epochs(config, runner, make, parts, reporter, target=target)
    if kept is not None:
        kept = kept._replace(model=without_optimizer(kept.model))
    if checkpoints:
        checkpoints.choice = epochs
    return epochs, kept


def _try_second_model(
    config: RunConfig,
    parts: TrainingParts,
    logs: Path | None,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None,
    make_runner: MakeRunner,
) -> TrialResult:
    with _continued(checkpoints):
        logs = below(logs, "second_model")
        return try_second_model(config, parts, logs, reporter, checkpoints, make_runner)


def _choose_model(
    config: RunConfig,
    data: Source,
    parts: TrainingParts | None,
    logs: Path | None,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None,
    trials: KeepsTrials | None,
) -> tuple[RunConfig, EpochChoice, ModelChoice]:
    with phase("choice of the model", whole=True), _continued(checkpoints):
        return choose_model(config, data.schema, parts, below(logs, "trials"), reporter, trials)


@contextlib.contextmanager
def _continued(checkpoints: RunCheckpoints | None) -> Iterator[None]:
    """Turns the end of a search by a signal into an error that says how to continue it."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoints is None or not checkpoints.wanted:
            raise
        raise checkpoints.interrupted() from None


def with_crosses(config: RunConfig, parts: TrainingParts | None, reporter: Reporter) -> RunConfig:
    """The configuration with the crosses that gain on the validation data.

    Args:
        config: configuration of the run.
        parts: training data and validation data; None: there are no validation data, and the model
            chooses by a part of its data.
        reporter: is told what happens.

    Returns:
        The configuration; unchanged if the model has no such option, it is set, or the model has no
        statistics of categories.

    Raises:
        DataError: the data cannot be read.
    """
    if parts is None or config.from_run is not None or config.model == AUTO:
        return config
    options = config.model_options
    build = builder_of(config.model)
    statistics = False
    if build is models.dcn:
        statistics = options.get("statistics", True)
    elif build is models.deepfm:
        statistics = options.get("trees", False) is not False
    several = len(parts.fit.schema.fields) > 1
    if not (statistics and several and options.get("crosses") is None):
        return config

    def batches(source: Source) -> object:
        dataset = source.dataset(LARGE_BATCH_SIZE, layout=models.layout_of(build, options))
        return weighted(dataset, config.positive_weight)

    with phase("crosses"), reporter.phase("choosing crosses of categories"):
        crosses = models.choose_crosses(parts.fit.schema, *map(batches, parts))
    if crosses:
        reporter.crosses(crosses)
    return dataclasses.replace(config, model_options={**options, "crosses": crosses})


SECOND_MODEL = "deepfm"
SECOND_OPTIONS = {"l2": 0.003, "linear_l2": 0.003, "embedding_dropout": 0.0}


def second_model(config: RunConfig, schema: Schema) -> RunConfig | None:
    """The configuration with the second model.

    It has boosted trees beside the net if the first one has.

    Args:
        config: what the user chose.
        schema: the features.

    Returns:
        The configuration, with a learning rate; None if the user chose the model, if the run goes
        on with another one, if the weights of early stopping are kept (only one model has such
        weights), if tables are in files, or if there are fewer than two categorical features, whose
        pairs the model is for.
    """
    unsuitable = config.from_run is not None or config.storage is not None or not config.refit
    if config.model != DEFAULT or unsuitable or len(schema.categorical) < 2:
        return None
    options = {**SECOND_OPTIONS, "trees": config.model_options.get("trees")}
    return with_learning_rate(
        dataclasses.replace(config, model=SECOND_MODEL, model_options=options)
    )


def with_the_crosses_of(second: RunConfig | None, config: RunConfig) -> RunConfig | None:
    """The configuration with the second model, with the crosses of the first one."""
    crosses = config.model_options.get("crosses")
    if second is None or crosses is None:
        return second
    options = {**second.model_options, "crosses": crosses}
    return dataclasses.replace(second, model_options=options)


def try_second_model(
    config: RunConfig,
    parts: TrainingParts,
    log_dir: Path | None,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None,
    make_runner: MakeRunner = local_runner,
) -> TrialResult:
    """Trains the second model with early stopping, unless an earlier process of the run has.

    It stops when its loss on the validation data does not decrease.

    Args:
        config: configuration with the second model.
        parts: training data and validation data.
        log_dir: folder of its TensorBoard logs; None: there are none.
        reporter: is told what happens.
        checkpoints: the checkpoints of the run, which keep the result; None: it is not kept.
        make_runner: says where to train.

    Raises:
        DataError: the data cannot be read.
    """
    kept = checkpoints.load_trials() if checkpoints else None
    if kept and kept.results:
        return kept.results[0]
    with phase("second model", whole=True), reporter.phase(f"trying {config.model}"):
        # Its loss seldom decreases again after an increase, and it is the dearer of the models.
        once = dataclasses.replace(config, patience=1)
        result = run_trial(once, parts, log_dir=log_dir, make_runner=make_runner)
        result = result._replace(
            config=dataclasses.replace(result.config, patience=config.patience)
        )
    if checkpoints:
        checkpoints.keep_trials(KeptTrials([result], result.trial.seconds))
    return result


def compared(
    config: RunConfig, choice: EpochChoice, second: TrialResult, reporter: Reporter
) -> tuple[RunConfig, EpochChoice, ModelChoice]:
    """The better one of two models, by the log loss on the validation data.

    Args:
        config: configuration with the default model.
        choice: its number of epochs, or what an earlier process of the run chose after this
            comparison.
        second: the trial of the second model.
        reporter: is told what happens.

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
    reporter.second_model(second.trial, choice.log_loss, is_second)
    if not is_second:
        return config, choice, model_choice
    assert second.choice is not None
    return second.config, dataclasses.replace(second.choice, refit=config.refit), model_choice


_AUTO_MODELS = ("dcn", "deepfm", "sparse_mlp", "logistic")
_OF_FIELDS = ("deepfm",)  # they multiply the vectors of several fields
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
    return [first, *(n for n in _AUTO_MODELS if n != first and (several or n not in _OF_FIELDS))]


def check_auto(config: RunConfig) -> None:
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
    log_dir: Path | None,
    reporter: Reporter,
    trials: KeepsTrials | None = None,
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
        log_dir: folder of the TensorBoard logs, with one for each trial; None: there are none.
        reporter: is told what happens.
        trials: keeps the trials that are done. A run that is continued does not repeat them, and
            their time counts. None: none are kept.

    Returns:
        (the configuration with the chosen model, its number of epochs, the trials).

    Raises:
        UserError: there are no validation data, or no trial succeeded.
        DataError: the data cannot be read.
    """
    if parts is None:
        raise UserError("--model auto needs validation data, for which there are too few examples")
    search = _Search(config, parts, log_dir, reporter, trials)
    reporter.trials(parts.validation.name, parts.validation.num_examples())
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
    reporter.model_chosen(choice)
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
        log_dir: Path | None,
        reporter: Reporter,
        trials: KeepsTrials | None,
    ) -> None:
        self._parts, self._log_dir, self._reporter = parts, log_dir, reporter
        self._given, self._limit = config, config.time_limit or DEFAULT_TIME_LIMIT
        self._trials = trials
        kept = trials.load_trials() if trials else None
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
        if self._trials and not self._earlier:
            self._trials.keep_trials(KeptTrials(self._results, self._elapsed()))
        self._reporter.trial(len(self._results), result.trial, better)
        return better

    def _run(self, config: RunConfig) -> TrialResult:
        log_dir = below(self._log_dir, f"{len(self._results) + 1}_{config.model}")
        with self._reporter.phase(f"trying {config.model}"):
            config = with_crosses(config, self._parts, SILENT)
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
