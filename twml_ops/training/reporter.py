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
    """Receives the events of a training. This class ignores them; subclasses show or record them.

    The command line shows it on the terminal (`twml_ops.cli.reporter.ConsoleReporter`).
    """

    def phase(self, text: str) -> AbstractContextManager[object]:
        """A part of the work that takes a while.

        Args:
            text: what is done.

        Returns:
            The context in which it is done.
        """
        return contextlib.nullcontext()

    def phase_ended(self, name: str, seconds: float) -> None:
        """A phase has ended; run.json and the report have it under the same name.

        Args:
            name: what was done.
            seconds: its wall time, without the phases within it.
        """

    def bar(self, title: str, total: int | None) -> AbstractContextManager[Bar]:
        """A pass over examples.

        Args:
            title: what is done.
            total: number of examples, if known.

        Returns:
            The context in which it is done; it gives a `Bar`.
        """
        return contextlib.nullcontext(_NoBar())

    def warning(self, text: str) -> None:
        """Something about the data or the result that should be looked at.

        Args:
            text: a sentence.
        """

    def failure(self, text: str) -> None:
        """Something has failed that the training does not depend on, such as a checkpoint.

        Args:
            text: what, and why.
        """

    def columns(self, source: Source) -> None:
        """What the columns of the data are taken for.

        Args:
            source: the data; its `findings` are empty if a schema says it.
        """

    def data(self, train: Source, held_out: Source, sizes: tuple[int, int]) -> None:
        """The data of the training.

        Args:
            train: training data.
            held_out: evaluation data.
            sizes: their numbers of examples.
        """

    def split_in_time(self, schema: Schema) -> None:
        """The evaluation data are the latest examples.

        Args:
            schema: schema of the data, with the column of times.
        """

    def leaks(self, leaks: Mapping[str, float], data: str) -> None:
        """The features that alone predict the label.

        Args:
            leaks: area under the ROC curve by feature; most often empty.
            data: name of the data that show it.
        """

    def crosses(self, names: Sequence[str]) -> None:
        """The crosses of categories are chosen.

        Args:
            names: the crosses, best first.
        """

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
        """The vectors of the fields differ in width.

        Args:
            units: the width of each.
        """

    def validation(self, fit: Source, validation: Source, sizes: tuple[int, int]) -> None:
        """The number of epochs is going to be chosen.

        Args:
            fit: the part of the training data that is trained on.
            validation: the part by whose loss the number is chosen.
            sizes: their numbers of examples.
        """

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
        """The number of epochs is chosen.

        Args:
            choice: the number, and the record of the training that chose it.
        """

    def member(self, members: Sequence[Member], count: int) -> None:
        """A member of an ensemble is trained.

        Args:
            members: the members so far.
            count: how many there will be.
        """

    def trials(self, data: str, examples: int) -> None:
        """A search begins.

        Args:
            data: name of the data on which the trials are judged.
            examples: number of their examples.
        """

    def trial(self, number: int, trial: Trial, best: bool) -> None:
        """A trial has ended.

        Args:
            number: its number, from 1.
            trial: its record.
            best: whether it is the best one so far.
        """

    def searched(self, data: str, model: str, values: Mapping[str, object]) -> None:
        """The options of a model are going to be searched.

        Args:
            data: name of the training data.
            model: name of the model.
            values: the values of each option.
        """

    def model_chosen(self, choice: ModelChoice) -> None:
        """The model of "auto" is chosen.

        Args:
            choice: the trials, and the best of them.
        """

    def second_model(self, trial: Trial, log_loss: float, chosen: bool) -> None:
        """The default model was compared with a second one.

        Args:
            trial: the trial of the second model.
            log_loss: the loss of the default model.
            chosen: whether the second one is chosen.
        """

    def checkpoint(self, step: int, count: int, metrics: Mapping[str, float]) -> None:
        """The evaluator of a cluster has evaluated a checkpoint.

        Args:
            step: step of the checkpoint.
            count: number of steps of the training.
            metrics: its metrics.
        """

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
        """The speeds of a cluster and of one process were compared.

        Args:
            speeds: both speeds.
        """

    def exchanges(self, counts: Mapping[str, int]) -> None:
        """Peers have finished.

        Args:
            counts: what they have exchanged, by kind.
        """


SILENT = Reporter()
