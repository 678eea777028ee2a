"""The trainings of a run in a cluster, its stages: the chief begins and ends them, all take part.

The chief does what a single process does: it chooses crosses, compares models, stops early, and
trains the model of the run. Each training of that is a stage. The chief announces it, and after
each of its epochs whether it goes on (`ChiefDecisions`). The other workers choose nothing: they
train in the stages until the chief announces the end (`ClusterStages.follow`). A chief that is
restarted does the same again, but finds the results of the epochs that have ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from twml_ops.checkpoint import CheckpointManager, State
from twml_ops.checkpoint.callback_state import NamedArray
from twml_ops.data import Source, TrainingParts
from twml_ops.distribute import (
    ChiefBuiltModel,
    ChiefDecisions,
    Cluster,
    ClusterError,
    exit_on_cluster_error,
)
from twml_ops.training.callbacks import EarlyStopping
from twml_ops.training.cluster import (
    START_KEY,
    checkpoint_dir,
    cluster_options,
    stages_dir,
)
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.kept_results import MEMBERS, KeptTrials, MemberStore, TrialStore
from twml_ops.training.reporter import Reporter
from twml_ops.training.results import FittedModel
from twml_ops.training.run_folder import is_run, read_run
from twml_ops.training.stage_training import Stage, StageTraining

END = "end"


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
            return ChiefBuiltModel(
                *(make_model, self.model_file(number), self.cluster, self._timeout),
                with_tables=self.asked.from_run is not None,
            )

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
        known, own = (self._as_asked(each).to_json() for each in (Stage.from_json(known), stage))
        if json.dumps(known) != json.dumps(own):
            raise UserError(
                f"{self.decisions.folder}: stage {number} of the run was another training before "
                "the restart of this process, because the data have changed; use --overwrite to "
                "begin again"
            )
        if self._trained is not None:
            self._trained.release()
            self._trained = None
        self._count = number

    def _as_asked(self, stage: Stage) -> Stage:
        """A stage with the options of this process that a continued run may change."""
        own = {name: getattr(self.asked, name) for name in ("cluster", "checkpoint_policy")}
        return stage._replace(config=dataclasses.replace(stage.config, **own))

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
        """Gives early stopping the weights of its best epoch, if another process has trained it.

        Raises:
            UserError: they are missing.
        """
        state = stopping.checkpoint_state()
        if not stopping.best_epoch or state.arrays:
            return
        with CheckpointManager(self._best_folder, background=False) as manager:
            found = [c for c in manager.all() if c.manifest.step == stopping.best_epoch]
            if not found:
                raise UserError(
                    f"{self._best_folder}: the weights of epoch {stopping.best_epoch}, the best of "
                    f"stage {self._count}, are missing; use --overwrite to begin again"
                )
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

    def load_trials(self) -> KeptTrials | None:
        """The trials of `--model auto` that an earlier chief of the run has done."""
        return self._trials.load(self.asked)

    def keep_trials(self, kept: KeptTrials) -> None:
        """Keeps the trials of `--model auto`, which a chief that is restarted does not repeat.

        Args:
            kept: all trials so far.
        """
        self._trials.save(self.asked, kept)

    @property
    def _trials(self) -> TrialStore:
        return TrialStore(Path(self.decisions.folder))

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
            if self._is_written:
                return {END: True}
            raise
        return found

    def wait_for_run(self) -> None:
        """Waits until the chief has written the folder of the run and removed the checkpoints.

        Raises:
            ClusterError: the chief has not written a heartbeat for the timeout, and has not
                finished the run.
        """
        self.decisions.wait_for_removal()
        if not self._is_written:
            raise ClusterError(f"{self.out}: the chief has ended, and the run has not finished")

    @property
    def _is_written(self) -> bool:
        """Whether the run of this start of the cluster has finished."""
        return is_run(self.out) and read_run(self.out).get(START_KEY) == self.cluster.start_id

    def follow(self, data: Source, parts: TrainingParts | None) -> None:
        """Takes part in all stages of the run, as a worker that is not the chief.

        The process ends with the run.

        Args:
            data: all training data.
            parts: the same in two parts; None: there are no validation data.
        """
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
            stage = self._as_asked(Stage.from_json(found))
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
            self._trained.release_files()
            self._trained.finish()


def epoch_name(number: int, epoch: int) -> str:
    """The name of the decision after an epoch of a stage, both counted from 1."""
    return f"stage-{number}-epoch-{epoch}"


def _never_called() -> NoReturn:
    raise AssertionError("only the chief builds the model")
