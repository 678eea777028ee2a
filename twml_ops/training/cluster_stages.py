"""The trainings of a run in a cluster, its stages: the chief begins and ends them, all take part.

The chief does what a single process does: it chooses crosses, compares models, stops early, and
trains the model of the run. Each training of that is a stage. The chief announces it, and after
each of its epochs whether it goes on (`ChiefDecisions`). The other workers choose nothing: they
train in the stages until the chief announces the end (`ClusterStages.follow`). A chief that is
restarted does the same again, but finds the results of the epochs that have ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf

from twml_ops import models
from twml_ops.checkpoint import CheckpointManager, State
from twml_ops.checkpoint.facts import FACTS
from twml_ops.checkpoint.state import NamedArray
from twml_ops.data import InputPosition, Source, TrainingParts
from twml_ops.distribute import (
    ChiefBuiltModel,
    ChiefDecisions,
    Cluster,
    ClusterError,
    HybridTrainer,
    exit_on_cluster_error,
)
from twml_ops.distribute.parameter_server.checkpoint import manager_of
from twml_ops.training.callbacks import EarlyStopping
from twml_ops.training.cluster import (
    START_KEY,
    WorkerData,
    checkpoint_dir,
    cluster_options,
    stages_dir,
    steps_of_epoch,
    worker_batches,
    worker_data,
)
from twml_ops.training.cluster_checkpoints import START, cluster_facts
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import weighted
from twml_ops.training.model import make_optimizer
from twml_ops.training.reporter import Reporter
from twml_ops.training.results import FittedModel, History
from twml_ops.training.run_folder import is_run, read_run
from twml_ops.training.stores import MEMBERS, MemberStore

END = "end"
OnStep = Callable[[int, Any], None]


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


class ClusterStages:
    """The part of this process, a worker of the cluster that `TF_CONFIG` describes, in a run.

    Args:
        asked: what the user chose, equal in all processes.
        out: final folder of the run, beside which the checkpoints and the stages are kept.
        reporter: is told what happens.
        resume: whether the run of another start of the cluster is continued.
        folder: folder to which the chief writes the files of the run; None: `out`.

    Attributes:
        asked: what the user chose.
        out: final folder of the run.
        folder: folder to which the chief writes the files of the run.
        reporter: is told what happens.
        cluster: the cluster.
        decisions: what the chief has decided.
    """

    def __init__(
        self,
        asked: RunConfig,
        out: Path,
        reporter: Reporter,
        resume: bool,
        folder: Path | None = None,
    ) -> None:
        self.asked, self.out, self.reporter = asked, out, reporter
        self.folder = folder or out
        self.cluster = Cluster.from_environment()
        self._resume = resume
        self._timeout = cluster_options(asked).timeout
        self.decisions = ChiefDecisions(
            stages_dir(out, self.cluster.start_id), self.cluster.is_chief, self._timeout
        )
        self._count = 0  # stages that this process has begun
        self._trained: StageTraining | None = None  # the last one

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Connects this process to the servers. The chief writes heartbeats in the `with` block.

        Yields:
            Nothing.
        """
        with exit_on_cluster_error():
            self.cluster.connect(self._timeout)
        with self.decisions.present():
            yield

    def model_file(self, number: int) -> str:
        """The file of the model of a stage, which its chief writes.

        Args:
            number: the number of the stage, from 1.
        """
        return os.path.join(self.decisions.folder, f"stage-{number}.keras")

    def build(self, make_model: Callable[[], tf.keras.Model], number: int) -> ChiefBuiltModel:
        """The model of a stage, which the chief builds and the others read.

        Args:
            make_model: returns the model; only the chief calls it, unless the file is there.
            number: the number of the stage.
        """
        with exit_on_cluster_error():
            path = self.model_file(number)
            return ChiefBuiltModel(make_model, path, self.cluster, self._timeout)

    @property
    def next_number(self) -> int:
        """The number of the stage that comes next. A model that cannot be built is no stage."""
        return self._count + 1

    def read_model(self, number: int) -> ChiefBuiltModel:
        """The model of a stage, in another process than the chief.

        Args:
            number: the number of the stage.
        """
        return self.build(_never_called, number)

    def announce(self, number: int, stage: Stage) -> None:
        """Begins a stage, whose model is written, and has the other workers take part in it.

        Args:
            number: the next number.
            stage: the stage.

        Raises:
            UserError: an earlier process of the run has announced another one.
        """
        known = self.decisions.decide(f"stage-{number}", stage.to_json)
        if known != json.loads(json.dumps(stage.to_json())):
            raise UserError(
                f"{self.decisions.folder}: stage {number} of the run was another training before "
                "this process was started again: the data have changed; use --overwrite to begin "
                "again"
            )
        if self._trained is not None:
            self._trained.release()
            self._trained = None
        self._count = number

    def begin(self, number: int, stage: Stage, model: ChiefBuiltModel, train: Source) -> Any:
        """The part of this process in the training of a stage."""
        self._trained = StageTraining(self, number, stage, model, train, self._resume)
        return self._trained

    def keep_weights(self, epoch: int, state: State) -> None:
        """Keeps the weights of the best epoch of the stage, for a chief that is restarted.

        Args:
            epoch: its number.
            state: the state of `EarlyStopping`.
        """
        arrays = [NamedArray(name, name, value) for name, value in state.arrays.items()]
        with CheckpointManager(self._best_folder, keep=3, background=False) as manager:
            manager.save(epoch, arrays, {})

    def restore_weights(self, stopping: EarlyStopping) -> None:
        """Gives early stopping the weights of its best epoch, if another process has trained it."""
        state = stopping.checkpoint_state()
        if not stopping.best_epoch or state.arrays:
            return
        with CheckpointManager(self._best_folder, background=False) as manager:
            found = [c for c in manager.all() if c.manifest.step == stopping.best_epoch]
            arrays = {name: found[-1].read(name) for name in found[-1].entries}
        stopping.restore_state(State(state.values, arrays))

    @property
    def _best_folder(self) -> str:
        return os.path.join(self.decisions.folder, f"stage-{self._count}-best")

    def load_member(self, number: int) -> FittedModel | None:
        """The model of a stage that an earlier process of the run has trained, of an ensemble."""
        stage = self.decisions.get(f"stage-{number}")
        return self._members.load(number, Stage.from_json(stage).config)

    def has_member(self, number: int) -> bool:
        """Whether the model of a stage is kept."""
        return self._members.has(number)

    def keep_member(self, number: int, fitted: FittedModel) -> None:
        """Keeps the model of a stage, which is a member of an ensemble."""
        stage = self.decisions.get(f"stage-{number}")
        self._members.save(number, fitted, Stage.from_json(stage).config)

    @property
    def _members(self) -> MemberStore:
        return MemberStore(checkpoint_dir(self.out) / MEMBERS)

    def wait_for(self, number: int) -> dict[str, Any]:
        """Waits until the chief announces a stage, in another process than the chief.

        Args:
            number: the number of the stage.

        Returns:
            The stage as JSON has it, or what has the key `END` if the run has ended.

        Raises:
            ClusterError: the chief has not written a heartbeat for the timeout, and has not
                finished the run.
        """
        try:
            found: dict[str, Any] = self.decisions.wait(f"stage-{number}")
        except ClusterError:
            # The finished run has no stages, and this process may have been restarted after it.
            if is_run(self.out) and read_run(self.out).get(START_KEY) == self.cluster.start_id:
                return {END: True}
            raise
        return found

    def follow(self, data: Source, parts: TrainingParts | None) -> None:
        """Takes part in all stages of the run, as a worker that is not the chief.

        The process ends with the run.

        Args:
            data: all training data.
            parts: the same in two parts; None: there are no validation data.
        """
        with exit_on_cluster_error():
            self._take_part(data, parts)
            if self._trained is not None:
                self._trained.finish()
            if self.cluster.own_servers:  # TensorFlow in the chief needs them until its end
                self.decisions.wait_for_removal()
        sys.stdout.flush()
        os._exit(0)  # threads of TensorFlow may wait for servers that end with the chief

    def _take_part(self, data: Source, parts: TrainingParts | None) -> None:
        while END not in (found := self.wait_for(self._count + 1)):
            self._count += 1
            stage = Stage.from_json(found)
            if stage.part == "fit" and parts is None:
                raise ClusterError("the chief has validation data, and this worker has none")
            train = parts.fit if stage.part == "fit" and parts is not None else data
            model = self.read_model(self._count)
            training = self.begin(self._count, stage, model, train)
            for epoch in range(1, stage.epochs + 1):
                name = epoch_name(self._count, epoch)
                ended = self.decisions.get(name)  # before this process was restarted
                if ended is None:
                    training.run_epoch(epoch)
                    ended = self.decisions.wait(name)
                if ended["stop"]:
                    break
            if stage.final:
                training.end(epoch)

    def end(self) -> None:
        """Lets the other workers end. The chief calls this when all models are trained."""
        self.decisions.announce(f"stage-{self._count + 1}", {END: True})
        if self._trained is not None:
            with exit_on_cluster_error():
                self._trained.finish()


def epoch_name(number: int, epoch: int) -> str:
    """The name of the decision after an epoch of a stage, both counted from 1."""
    return f"stage-{number}-epoch-{epoch}"


class StageTraining:
    """The part of this process in the training of a stage.

    Args:
        stages: the stages of the run.
        number: the number of the stage.
        stage: what it trains.
        model: its model.
        train: its data.
        resume: whether checkpoints of another start of the cluster may be continued.

    Attributes:
        epochs: the most epochs.
        steps: steps of an epoch.
        step_examples: examples of a step of all workers together.
    """

    def __init__(
        self,
        stages: ClusterStages,
        number: int,
        stage: Stage,
        model: ChiefBuiltModel,
        train: Source,
        resume: bool,
    ) -> None:
        self._stages, self._stage, self._model, self._source = stages, stage, model, train
        config, cluster = stage.config, stages.cluster
        self.steps, self.step_examples = steps_of_epoch(train, config)
        self.epochs = stage.epochs
        self._data: WorkerData | None = None
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
                self._model,
                make_optimizer(config.optimizer, config.learning_rate),
                "binary_crossentropy",
                cluster=self._cluster,
                checkpoint_dir=folder,
                checkpoint_policy=config.checkpoint_policy,
                checkpoint_facts=self._facts,
                facts_may_differ=self._may_differ,
                **cluster_options(config).trainer_arguments(),
            )
        return self._trainer

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
        """The batches of a worker, from one of all its batches on."""
        config = self._stage.config

        def batches(part: Source, position: InputPosition) -> tf.data.Dataset:
            dataset = part.dataset(
                config.fixed_batch_size,
                shuffle=True,
                seed=config.seed,
                layout=models.layout_of(self._model),
                position=position,
            )
            return weighted(dataset, config.positive_weight)

        if self._data is None:
            index, count = context.input_pipeline_id, context.num_input_pipelines
            self._data = worker_data(self._source, index, count)
        return worker_batches(
            self._data,
            batches,
            seed=config.seed,
            batch_size=config.fixed_batch_size,
            first_batch=first_batch,
        )

    def joined(self) -> HybridTrainer:
        """The trainer, after it has joined the run, whose values are on the servers."""
        if self.trainer.model is None:
            context = tf.distribute.InputContext(len(self._cluster.workers), self._cluster.index)
            batch = next(iter(self.dataset(context, 0)))
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
        data = self._data
        if data is None:
            return
        history = History(
            parsed_bytes=self._source.parsed_bytes, data_bytes=self._source.num_bytes()
        )
        self._stages.reporter.parsed(
            history,
            (data.index, data.count),
            is_whole=data.is_whole,
            is_chief=self._cluster.is_chief,
        )

    @property
    def weights(self) -> list[Any]:
        """The tables, and the dense weights where they are."""
        state = self.joined().state
        shared = {id(s.local): s.remote for s in state.shared_variables}
        return [*state.tables, *(shared.get(id(v), v) for v in state.dense_weights)]

    def finish(self) -> None:
        """Ends the use of the servers; see `HybridTrainer.finish`."""
        if self._trainer is not None:
            self._trainer.finish()

    def release(self) -> None:
        """Removes the values of the stage from the servers."""
        if self._trainer is not None:
            with exit_on_cluster_error():
                self._trainer.release()
            self._trainer = None


def _never_called() -> NoReturn:
    raise AssertionError("only the chief builds the model")
