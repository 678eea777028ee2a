"""What a training tells its caller while it runs. It does not import TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twml_ops.data import Schema, Source
    from twml_ops.training.results import (
        Epoch,
        EpochChoice,
        History,
        Member,
        ModelChoice,
        SpeedComparison,
        Trial,
    )


class Bar(Protocol):
    """Progress over examples."""

    def add(self, examples: int, status: str = "") -> None:
        """Further examples are done.

        Args:
            examples: their number.
            status: the current metrics, or "".
        """


class _NoBar:
    def add(self, examples: int, status: str = "") -> None:
        pass


class Reporter:
    """Is told what a training does. This one is silent; subclasses show what they like.

    The command line shows it on the terminal (`twml_ops.cli.reporter.ConsoleReporter`).
    """

    def phase(self, text: str) -> AbstractContextManager[object]:
        """A part of the work that takes a while, as the block of a `with` statement."""
        return contextlib.nullcontext()

    def bar(self, title: str, total: int | None) -> AbstractContextManager[Bar]:
        """A pass over examples, as the block of a `with` statement.

        Args:
            title: what is done.
            total: number of examples, if known.
        """
        return contextlib.nullcontext(_NoBar())

    def warning(self, text: str) -> None:
        """Something about the data or the result that should be looked at."""

    def failure(self, text: str) -> None:
        """Something has failed that the training does not depend on, such as a checkpoint."""

    def columns(self, source: Source) -> None:
        """What the columns of the data are taken for: `source.findings`, if there are any."""

    def data(self, train: Source, held_out: Source, sizes: tuple[int, int]) -> None:
        """The training data and the evaluation data, with their numbers of examples."""

    def split_in_time(self, schema: Schema) -> None:
        """The evaluation data are the latest examples."""

    def differs(self, text: str) -> None:
        """A sentence: what one process would train, where a cluster or peers train otherwise."""

    def leaks(self, leaks: Mapping[str, float], data: str) -> None:
        """The features that alone predict the label.

        Args:
            leaks: area under the ROC curve by feature; most often empty.
            data: name of the data that show it.
        """

    def crosses(self, names: Sequence[str]) -> None:
        """The crosses of categories that were chosen, best first."""

    def model(
        self, name: str, weights: int, optimizer: str, trees: Sequence[tuple[int, int]]
    ) -> None:
        """The model that is going to be trained.

        Args:
            name: its name.
            weights: their number.
            optimizer: name of the optimizer.
            trees: for each layer of boosted trees the number of ensembles and the trees of the
                largest.
        """

    def widths(self, units: Sequence[int]) -> None:
        """The widths of the vectors of the fields, if they differ."""

    def validation(self, fit: Source, validation: Source, sizes: tuple[int, int]) -> None:
        """The parts of the training data between which the number of epochs is chosen."""

    def resumed(self, step: int, epoch: int, folder: object) -> None:
        """The training continues from a checkpoint.

        Args:
            step: step of the checkpoint.
            epoch: number of its epoch, from 1.
            folder: folder of the checkpoints.
        """

    def epoch(self, number: int, count: int, record: Epoch, monitored: str) -> None:
        """An epoch has ended.

        Args:
            number: its number, from 1.
            count: the number of epochs, unless the training is stopped early.
            record: its metrics.
            monitored: "validation" or "evaluation": what the metrics `val_...` are of.
        """

    def epochs_chosen(self, choice: EpochChoice) -> None:
        """The number of epochs is chosen."""

    def member(self, members: Sequence[Member], count: int) -> None:
        """The last one of `members` is trained, out of `count`."""

    def trials(self, data: str, examples: int) -> None:
        """A search begins, whose trials are judged on these data."""

    def trial(self, number: int, trial: Trial, best: bool) -> None:
        """A trial has ended; `best` if it is the best one so far."""

    def searched(self, data: str, model: str, values: Mapping[str, object]) -> None:
        """The training data, the model, and the options that are searched with their values."""

    def model_chosen(self, choice: ModelChoice) -> None:
        """The model of "auto" is chosen."""

    def second_model(self, trial: Trial, log_loss: float, chosen: bool) -> None:
        """The default model was compared with a second one.

        Args:
            trial: the trial of the second model.
            log_loss: the loss of the default model.
            chosen: whether the second one is chosen.
        """

    def step(self, number: int, count: int, loss: float) -> None:
        """A cluster has done so many steps; `loss` is the mean since the last point."""

    def checkpoint(self, step: int, count: int, metrics: Mapping[str, float]) -> None:
        """The evaluator of a cluster has evaluated the checkpoint of a step."""

    def parsed(
        self, history: History, worker: tuple[int, int], *, is_whole: bool, is_chief: bool
    ) -> None:
        """How much of the training data a worker of a cluster has parsed.

        Args:
            history: the record of the training.
            worker: its number, and the number of workers.
            is_whole: whether the data could not be divided among the workers.
            is_chief: whether the worker is the chief.
        """

    def speeds(self, speeds: SpeedComparison) -> None:
        """The speeds of a cluster and of one process were compared."""

    def exchanges(self, counts: Mapping[str, int]) -> None:
        """What peers have exchanged, by kind."""


SILENT = Reporter()
