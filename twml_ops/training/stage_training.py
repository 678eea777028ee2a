"""A training in which all workers of a cluster take part, and the part of a worker in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import models
from twml_ops.checkpoint.facts import FACTS
from twml_ops.data import InputPosition, Source
from twml_ops.distribute import (
    ChiefBuiltModel,
    HybridTrainer,
    SavedSlots,
)
from twml_ops.distribute.parameter_server.checkpoint import manager_of
from twml_ops.training.cluster import (
    WorkerData,
    checkpoint_dir,
    cluster_options,
    steps_of_epoch,
    worker_batches,
    worker_data,
)
from twml_ops.training.cluster_checkpoints import START, cluster_facts
from twml_ops.training.config import RunConfig
from twml_ops.training.labels import JoinedModel, joined, summed_loss, weighted
from twml_ops.training.model import make_optimizer, storage_of, storage_scope
from twml_ops.training.results import History
from twml_ops.training.trained_run import restore_slots, saved_slots

OnStep = Callable[[int, Any], None]
CHIEF = "chief"  # the folder for rows of the trained model, below --storage


class Stage(NamedTuple):
    """A training in which all workers take part.

    Attributes:
        config: its configuration.
        part: "fit": the training data without the validation data; "all": all training data.
        epochs: the most epochs.
        final: whether it trains the model of the run.
    """

    config: RunConfig
    part: str
    epochs: int
    final: bool

    def to_json(self) -> dict[str, Any]:
        """The attributes as values that JSON can hold."""
        return {**self._asdict(), "config": self.config.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Stage:
        """What `to_json` returned."""
        return cls(**{**values, "config": RunConfig.from_json(values["config"])})


def with_optimizer(model: tf.keras.Model, config: RunConfig) -> tf.keras.Model:
    """Compiles a model with the optimizer of a training, which has new slots.

    Args:
        model: the model.
        config: configuration of the training, with a learning rate.

    Returns:
        The same model.
    """
    assert config.learning_rate is not None
    model.compile(make_optimizer(config.optimizer, config.learning_rate))
    model.optimizer.build(model.trainable_variables)
    return model


class StageTraining:
    """The part of this process in the training of a stage.

    Args:
        stages: the stages of the run, `ClusterStages`.
        number: the number of the stage.
        stage: what it trains.
        model: its model.
        train: its data.
        resume: whether checkpoints of another start of the cluster may be continued.

    Attributes:
        epochs: the most epochs.
        steps: steps of an epoch.
        step_examples: examples of a step of all workers together.
        labels: names of the labels.
        build: returns the model as it is trained, with one output for all labels.
    """

    def __init__(
        self,
        stages: Any,
        number: int,
        stage: Stage,
        model: ChiefBuiltModel,
        train: Source,
        resume: bool,
    ) -> None:
        self._stages, self._stage, self._model, self._source = stages, stage, model, train
        config, cluster = stage.config, stages.cluster
        self.labels = train.schema.labels
        self.build = JoinedModel(model, self.labels)
        self.steps, self.step_examples = steps_of_epoch(train, config)
        self.epochs = stage.epochs
        self._data: dict[int, WorkerData] = {}  # by the number of the worker or micro-batch
        self._facts = {
            **cluster_facts(stages.asked),
            "stage": number,
            "epoch_steps": self.steps,
            "step_examples": self.step_examples,
            "examples": train.num_examples(),
        }
        self._may_differ = (START,) if resume else ()
        self._cluster = cluster
        self._trainer: HybridTrainer | None = None

    @property
    def trainer(self) -> HybridTrainer:
        """The trainer, which is made when it is needed first."""
        if self._trainer is None:
            config = self._stage.config
            folder = checkpoint_dir(self._stages.out)
            if self._cluster.is_chief:
                self._remove_other_stages(folder)
            assert config.learning_rate is not None
            self._trainer = HybridTrainer(
                self.build,
                make_optimizer(config.optimizer, config.learning_rate),
                summed_loss(self.labels),
                cluster=self._cluster,
                checkpoint_dir=folder,
                checkpoint_policy=config.checkpoint_policy,
                checkpoint_facts=self._facts,
                facts_may_differ=self._may_differ,
                saved_slots=self._saved_slots(),
                storage=storage_of(config),
                **cluster_options(config).trainer_arguments(),
            )
        return self._trainer

    def _saved_slots(self) -> SavedSlots | None:
        """The slots of the run that the training goes on with; None if it has saved none."""
        config = self._stage.config
        found = saved_slots(config)
        if found is None:
            return None

        def read() -> tf.keras.Model:
            model = with_optimizer(self.build(), config)
            restore_slots(config, model)
            return model

        return SavedSlots(found.manifest.step, read)

    def _remove_other_stages(self, folder: Path) -> None:
        """Removes the checkpoints of the stages before, which nothing needs any more."""
        manager = manager_of(folder)
        newest = manager.latest()
        if (
            newest is not None
            and newest.manifest.values[FACTS].get("stage") != (self._facts["stage"])
        ):
            manager.remove_all()

    def dataset(self, context: tf.distribute.InputContext, first_batch: int) -> tf.data.Dataset:
        """The batches of a worker, or of a micro-batch, from one of all its batches on."""
        config = self._stage.config

        def batches(part: Source, position: InputPosition) -> tf.data.Dataset:
            dataset = part.dataset(
                config.fixed_batch_size,
                shuffle=True,
                seed=config.seed,
                layout=models.layout_of(self._model),
                position=position,
            )
            return weighted(joined(dataset, self.labels), config.positive_weight)

        index, count = context.input_pipeline_id, context.num_input_pipelines
        if index not in self._data:
            self._data[index] = worker_data(self._source, index, count)
        return worker_batches(
            self._data[index],
            batches,
            seed=config.seed,
            batch_size=config.fixed_batch_size,
            first_batch=first_batch,
        )

    def joined(self) -> HybridTrainer:
        """The trainer, after it has joined the run, whose values are on the servers."""
        if self.trainer.model is None:
            batch = next(iter(self.dataset(self.trainer.contexts()[0], 0)))
            self.trainer.build(batch)
        return self.trainer

    def run_epoch(self, epoch: int, on_step: OnStep | None = None) -> None:
        """Trains up to the end of an epoch, and waits on the chief until all workers have.

        Args:
            epoch: its number, from 1.
            on_step: see `HybridTrainer.fit`.
        """
        end = epoch * self.steps
        # An asynchronous worker does about its share of the steps of all.
        self.trainer.fit(self.dataset, end, on_step, begin=0, save_last=False)
        self.trainer.wait_for_workers(end)

    def end(self, epochs: int) -> None:
        """Ends the part of this worker in the model of the run: tells how much it has parsed.

        Args:
            epochs: the number of epochs that were trained.
        """
        if not self._data:
            return
        (data, *_), worker = self._data.values(), (self._cluster.index, len(self._cluster.workers))
        history = History(
            parsed_bytes=self._source.parsed_bytes, data_bytes=self._source.num_bytes()
        )
        self._stages.reporter.parsed(
            history,
            worker,
            is_whole=data.is_whole,
            is_chief=self._cluster.is_chief,
        )

    def export(self) -> tf.keras.Model:
        """Copies the trained model to this process, with the slots if the run saves them.

        Returns:
            The model to serve, with an output for each label.
        """
        trainer, config = self.joined(), self._stage.config
        with storage_scope(config, CHIEF):
            trained = trainer.export()
        served = self.build.served
        if config.save_slots:
            trainer.export_slots(with_optimizer(trained, config))
            if served is not trained:
                served.compile(trained.optimizer)
        return served

    @property
    def weights(self) -> list[Any]:
        """The tables, and the dense weights where they are."""
        state = self.joined().state
        shared = {id(s.local): s.remote for s in state.remote_weights}
        return [*state.tables, *(shared.get(id(v), v) for v in state.dense_weights)]

    def finish(self) -> None:
        """Ends the use of the servers; see `HybridTrainer.finish`."""
        if self._trainer is not None:
            self._trainer.finish()

    def release_files(self) -> None:
        """Removes the files of tables from the servers, when the model has been exported."""
        if self._trainer is not None:
            self._trainer.release_files()

    def release(self) -> None:
        """Removes the values of the stage from the servers."""
        if self._trainer is not None:
            self._trainer.release()
            self._trainer = None
