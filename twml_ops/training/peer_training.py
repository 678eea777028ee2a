"""The trainings of a rank in the stages of a run, and the runner of the first rank."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from twml_ops import models
from twml_ops.data import InputPosition, Source
from twml_ops.distribute import ChiefBuiltModel, ClusterError
from twml_ops.training.callbacks import mean_losses
from twml_ops.training.cluster import WorkerData, worker_data
from twml_ops.training.cluster_runner import ClusterRunner
from twml_ops.training.config import PEER_OPTIONS
from twml_ops.training.errors import RunInterrupted, UserError
from twml_ops.training.labels import joined, joined_outputs, weighted
from twml_ops.training.reporter import SILENT, Bar, Reporter
from twml_ops.training.results import FittedModel, History, LossPoint
from twml_ops.training.runners import LocalRunner, Monitored
from twml_ops.training.sources import LARGE_BATCH_SIZE
from twml_ops.training.stage_training import Stage
from twml_ops.training.tree_share import TreeShares, shares_of

START_OPTION = "start"  # in the options of a rank: tells the starts of jobs apart


def peer_options() -> dict[str, Any]:
    """The arguments of `PeerAveraging` that the launcher has given this rank."""
    options: dict[str, Any] = json.loads(os.environ[PEER_OPTIONS])
    options.pop(START_OPTION, None)
    return options


class PeerTraining(LocalRunner):
    """The part of a rank in the training of a stage.

    A rank trains on its share of the batches, and exchanges weights with the others
    (`PeerAveraging`). Each epoch ends with the average of its snapshots over all ranks. All that
    takes time begins with the first epoch: a process that is started again does not train in the
    stages that have ended.

    Args:
        stages: the stages of the run, `PeerStages`.
        number: the number of the stage.
        stage: what it trains.
        model: its model.
        train: its data.

    Attributes:
        number: the number of the stage.
        epochs: the most epochs.
        source: its data.
        history: the record of the training of this rank.
    """

    _looks_up_many = False  # ranks take single batches in turn

    def __init__(
        self, stages: Any, number: int, stage: Stage, model: ChiefBuiltModel, train: Source
    ) -> None:
        is_chief = stages.cluster.is_chief
        reporter = _Bars(stages.reporter, stage.epochs) if is_chief else SILENT
        super().__init__(stage.config, None, reporter, stages.checkpoints)
        self.number, self.epochs = number, stage.epochs
        self._fit_phase = f"stage {number}"
        self.source, self.history = train, History()
        self._stages, self._stage, self._build = stages, stage, model
        self._group, self._before = stages.group, stages.epochs_before(number)
        self._averaging: Any = None
        self._data: WorkerData | None = None
        self._models: tuple[Any, ...] | None = None
        self._evaluated: tuple[tf.keras.Model, tf.data.Dataset] | None = None
        self._shares: TreeShares | None = None

    @property
    def _prepared(self) -> tuple[Any, ...]:
        """The model, the same with one output, what of it is trained, and the inputs of that."""
        if self._models is None:
            if self._group.rank:  # ranks have different random numbers
                tf.keras.utils.set_random_seed(self._config.seed + 1 + self._group.rank)
            model, train = self._build(), self.source
            joint = joined_outputs(model, train.schema.labels)
            # Of all data: the shares change when ranks are lost.
            rest, computed = self._computed(joint, train, None)
            self.history = self._compile(rest, train, None)
            self._models = model, joint, rest, computed
        return self._models

    @property
    def trained(self) -> int:
        """The number of epochs that the ranks have trained."""
        return max(0, self._group.epoch - self._before)

    def run_epoch(self, epoch: int) -> None:
        """Trains up to the end of an epoch, together with the other ranks.

        Args:
            epoch: its number, from 1. Ranks that are started again may have to train epochs before.
        """
        while self.trained < epoch:
            self._run_next()

    def _run_next(self) -> None:
        from twml_ops.distribute import PeerAveraging
        from twml_ops.peers import PeerFailure

        model, _, rest, computed = self._prepared
        group, stages, before = self._group, self._stages, self._before
        group.epoch = max(group.epoch, before)
        if self._averaging is None:
            self._data = self._share()
            self._averaging = PeerAveraging(
                group,
                root=0 if stages.checkpoints is None else stages.checkpoints.take_root(self.number),
                regroup=True,
                before=before,
                epochs=self.epochs if self._stage.final else sys.maxsize - before,
                each_epoch=True,
                channel=stages.channel,
                **peer_options(),
            )
        averaging, done = self._averaging, self.trained
        try:
            self._train(
                *(rest, model, self.source, None, done + 1, (), self.history),
                initial_epoch=done,
                computed=computed,
                first=[averaging],
            )
        except PeerFailure as failure:  # before the training began
            group.survive(failure)
            self._averaging = None
        except RunInterrupted:
            raise
        except UserError as e:
            stages.fail(e)
        if stages.checkpoints is not None:
            stages.checkpoints.stop_if_interrupted()
        stages.channel = averaging.channel
        if averaging.channel is not None and averaging.channel.is_closed:
            self._averaging = stages.channel = None

    def _share(self) -> WorkerData:
        source, group, size = self.source, self._group, self._config.fixed_batch_size
        if group.size == 1:
            return WorkerData(source, 0, 1, is_whole=False)
        data = worker_data(source, group.rank, group.size)
        if data.is_whole and source.num_examples() <= size * (group.size - 1):
            self._stages.fail(
                UserError(
                    f"{source.name}: {source.num_examples()} examples are too few for "
                    f"{group.size} peers with batches of {size}: use a smaller --batch-size"
                )
            )
        return data

    def _examples(self, train: Source) -> int:
        data, size = self._data, self._config.fixed_batch_size
        assert data is not None
        count = data.source.num_examples()
        if not data.is_whole:
            return count
        batches = -(-count // size)
        mine = -(-(batches - data.index) // data.count)
        has_last = (batches - 1) % data.count == data.index
        return mine * size - (batches * size - count) * has_last

    def _batches(
        self, train: Source, layout: Any, position: InputPosition, **options: Any
    ) -> tf.data.Dataset:
        data = self._data
        assert data is not None
        if not data.is_whole:
            return super()._batches(data.source, layout, position, **options)
        position = dataclasses.replace(position, examples=position.examples * data.count)
        dataset = super()._batches(train, layout, position, **options)
        return dataset.shard(data.count, data.index)

    def evaluate(self, monitored: Monitored) -> dict[str, float]:
        """The metrics on the monitored data, with the names of a training that validates itself."""
        if self._evaluated is None:
            self._evaluated = self._model_and_batches(monitored)
            self._shares = shares_of(self._evaluated[0], self._config)
        model, batches = self._evaluated
        found = model.evaluate(batches, return_dict=True, verbose=0)
        metrics = mean_losses({f"val_{name}": value for name, value in found.items()})
        if monitored.name == "validation" and self._shares is not None:
            metrics |= self._shares.better(batches)
        return metrics

    def _model_and_batches(self, monitored: Monitored) -> tuple[tf.keras.Model, tf.data.Dataset]:
        served, joint, model, computed = self._prepared
        source, batches = monitored.source, None
        if computed is not None:
            front = models.divided(joint)
            elements = front and front.of(source, False, LARGE_BATCH_SIZE)
            batches = elements and models.batches_of(elements)
            if batches is None:  # they are too large to be computed once
                model = joint
                self._compile(model, source, None)
        if batches is None:
            batches = source.dataset(LARGE_BATCH_SIZE, layout=models.layout_of(served))
        batches = joined(batches, source.schema.labels)
        if monitored.name == "validation":
            batches = weighted(batches, self._config.positive_weight)
        return model, batches

    @property
    def weights(self) -> list[Any]:
        """The weights of the model."""
        found: list[Any] = self._prepared[1].weights
        return found

    def end(self, epochs: int) -> None:
        """Ends the training of the model of the run.

        Args:
            epochs: the number of epochs that were trained, in this process or before.
        """
        if not self._stages.has_member(self.number):
            self.run_epoch(epochs)

    def fitted(self, history: History) -> FittedModel:
        """The trained model.

        Args:
            history: the record of the training.
        """
        model, _, rest, _ = self._prepared
        if self._averaging is not None and self._averaging.counts is not None:
            self._reporter.exchanges(dataclasses.asdict(self._averaging.counts))
        return self._fitted(model, rest, history)

    def finish(self) -> None:
        """Ends nothing: there are no servers."""

    def release_files(self) -> None:
        """Removes nothing: there are no servers, which could have files."""

    def release(self) -> None:
        """Releases the model."""
        self._models = self._evaluated = self._shares = self._averaging = None


class _Bars(Reporter):
    """Shows the progress of an epoch. The runner reports the epoch after the evaluation."""

    def __init__(self, reporter: Reporter, epochs: int) -> None:
        self._reporter, self._epochs = reporter, epochs

    def bar(self, title: str, total: int | None) -> AbstractContextManager[Bar]:
        return self._reporter.bar(f"{title.partition('/')[0]}/{self._epochs}", total)

    def failure(self, text: str) -> None:
        self._reporter.failure(text)

    def resumed(self, step: int, epoch: int, folder: object) -> None:
        self._reporter.resumed(step, epoch, folder)

    def exchanges(self, counts: Mapping[str, int]) -> None:
        self._reporter.exchanges(counts)


class PeerRunner(ClusterRunner):
    """Trains with the other ranks, on the first one. See `Runner`."""

    def _run_epoch(
        self,
        training: PeerTraining,
        number: int,
        history: History,
        monitored: Monitored | None,
        model: ChiefBuiltModel,
    ) -> dict[str, Any]:
        """Trains an epoch; returns its record, as JSON has it, for a process that is restarted."""
        training.run_epoch(number)
        own = training.history
        if not own.epochs:  # it has joined after this epoch
            raise ClusterError("the chief has died after an epoch in which this peer has no part")
        epoch = own.epochs[-1]
        first, size = sum(e.examples for e in own.epochs[:-1]), training.source.num_examples()
        points = [
            LossPoint(history.examples + size * (seen - first) // epoch.examples, loss)
            for seen, loss in own.train_loss
            if first < seen <= first + epoch.examples
        ]
        metrics = dict(epoch.metrics)
        if monitored is not None:
            metrics |= training.evaluate(monitored)
        history.train_loss += points
        return {
            "seconds": epoch.seconds,
            "metrics": metrics,
            "train_loss": [list(p) for p in points],
        }

    def _exported(
        self, training: PeerTraining, epochs: int, train: Source, history: History
    ) -> FittedModel:
        return training.fitted(history)
