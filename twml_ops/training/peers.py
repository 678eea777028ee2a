"""The trainings of a run peer to peer, as ranks that `twml-ops launch --peers` or `mpirun` starts.

The first rank is the chief of the stages (`cluster_stages`), and the others follow it. If it dies,
the first one of the others becomes the chief: it chooses what the first one has chosen, finds the
results of the epochs that have ended, and goes on with the weights that it has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow as tf

from twml_ops._known_categories import KnownCategories
from twml_ops.checkpoint import CheckpointCallback
from twml_ops.data import Source, TrainingParts
from twml_ops.distribute import (
    ChiefBuiltModel,
    ChiefDecisions,
    Cluster,
    exit_on_cluster_error,
)
from twml_ops.training.checkpoints import RunCheckpoints
from twml_ops.training.cluster import check_cluster, stages_dir
from twml_ops.training.cluster_checkpoints import ClusterCheckpoints
from twml_ops.training.cluster_stages import ClusterStages, epoch_name
from twml_ops.training.config import PEER_OPTIONS, CheckpointOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.peer_training import START_OPTION, PeerTraining
from twml_ops.training.reporter import Reporter
from twml_ops.training.run_publisher import RunPublisher
from twml_ops.training.stage_training import Stage

if TYPE_CHECKING:
    from twml_ops.peers import PeerGroup

TIMEOUT = 300.0


class _IsChief(Exception):
    """The chief has died, and this rank takes its place."""


class PeerDecisions(ChiefDecisions):
    """Decisions of the first rank. A rank that waits for one notices its death.

    Args:
        folder: a folder that all ranks can reach.
        group: the ranks.
    """

    def __init__(self, folder: str | os.PathLike[str], group: PeerGroup) -> None:
        super().__init__(folder, group.rank == 0, group.timeout)
        self._group = group

    def wait(self, name: str) -> Any:
        """Waits for a decision.

        Args:
            name: the name of the decision.

        Returns:
            The value.

        Raises:
            _IsChief: this rank has become the chief.
            ClusterError: the chief has not written a heartbeat for `timeout` seconds.
        """
        from twml_ops.peers import PeerFailure

        while self._group.rank:
            try:
                return super().wait(name)
            except PeerFailure as failure:
                self._group.survive(failure)
        raise _IsChief

    def check(self) -> None:
        """See `ChiefDecisions.check`."""
        self._group.check_rank(0)


class PeerStages(ClusterStages):
    """The part of this process, a rank, in a run.

    Args:
        asked: what the user chose, equal in all processes.
        out: final folder of the run, beside which the checkpoints and the stages are kept.
        reporter: is told what happens.
        group: the ranks.
        folder: folder to which the chief writes the files of the run.
    """

    def __init__(
        self, asked: RunConfig, out: Path, reporter: Reporter, group: PeerGroup, folder: Path
    ) -> None:
        self.asked, self.out, self.reporter, self.folder = asked, out, reporter, folder
        self.group, self.cluster = group, cluster_of(group)
        self.decisions = PeerDecisions(stages_dir(out, self.cluster.start_id), group)
        self.checkpoints: PeerCheckpoints | None = None
        self.channel: Any = None  # of the last training
        self._timeout = group.timeout
        self._resume = False  # the checkpoints of the ranks say it
        self._count = 0
        self._trained: Any = None
        self._present = contextlib.ExitStack()

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """See `ClusterStages.connected`."""
        with self._present:
            self._present.enter_context(self.decisions.present())
            yield

    def epochs_before(self, number: int) -> int:
        """The number of epochs of the stages before one of them, which have ended."""
        count = 0
        for stage in range(1, number):
            count += self._ended(stage)[0]
        return count

    def _ended(self, number: int) -> tuple[int, bool]:
        """The number of epochs of a stage that have ended, and whether it has."""
        epochs = 0
        while ended := self.decisions.get(epoch_name(number, epochs + 1)):
            epochs += 1
            if ended["stop"]:
                return epochs, True
        return epochs, False

    def build(self, make_model: Callable[[], tf.keras.Model], number: int) -> ChiefBuiltModel:
        """See `ClusterStages.build`. A chief that may have to train it again builds it again.

        The model of an earlier run has its tables, of which the others are drawn anew.
        """
        is_kept = self._trained is not None and self._trained.number >= number
        again = not is_kept and not self._ended(number)[1]
        return ChiefBuiltModel(
            *(make_model, self.model_file(number), self.cluster, self._timeout),
            again=again,
            with_tables=self.asked.from_run is not None,
        )

    def begin(self, number: int, stage: Stage, model: ChiefBuiltModel, train: Source) -> Any:
        """The part of this process in the training of a stage, which it may have begun."""
        kept: Any = self._trained
        if kept is not None and kept.number == number:
            return kept
        training = PeerTraining(self, number, stage, model, train)
        if kept is None or kept.number < number:
            self._trained = training
        return training

    def announce(self, number: int, stage: Stage) -> None:
        """See `ClusterStages.announce`. A rank that has become the chief keeps its training."""
        kept: Any = self._trained
        if kept is None or kept.number < number:
            super().announce(number, stage)
            return
        self._trained = None
        super().announce(number, stage)
        self._trained = kept

    def follow(self, data: Source, parts: TrainingParts | None) -> None:
        """Takes part in all stages of the run, as a rank that is not the first.

        Returns if this rank has become the chief; otherwise the process ends with the run.

        Args:
            data: all training data.
            parts: the same in two parts; None: there are no validation data.

        Raises:
            SystemExit: the run has ended; the status is 0.
        """
        try:
            with exit_on_cluster_error():
                self._take_part(data, parts)
        except _IsChief:
            self.cluster = cluster_of(self.group)
            self.decisions.is_chief, self._count = True, 0
            self._present.enter_context(self.decisions.present())
            return
        self.group.close()
        raise SystemExit(0)

    def fail(self, error: Exception) -> NoReturn:
        """Ends the process of a rank that cannot train: the others would wait for it.

        Args:
            error: which is raised if there are no others.
        """
        if self.group.size > 1:
            self.group.leave(str(error))
        raise error

    def end(self) -> None:
        """See `ClusterStages.end`."""
        super().end()
        self.group.close()


def cluster_of(group: PeerGroup) -> Cluster:
    """The ranks as a cluster without servers, whose chief is the first rank."""
    start = json.loads(os.environ[PEER_OPTIONS]).get(START_OPTION, "")
    workers = [f"rank {rank}" for rank in range(group.full_size)]
    return Cluster(workers=workers, index=group.rank, start=start)


class PeerCheckpoints(RunCheckpoints):
    """The checkpoints of a rank, and the stages of the run. Making them is a collective call.

    The first rank publishes its checkpoints of the model of the run. If it dies, the rank that
    takes its place publishes the final model only.

    Ranks write their checkpoints at different moments, and some may have none. When a job
    continues, all ranks get the weights of the newest checkpoint. A rank whose own checkpoint is of
    an earlier epoch skips the rest of its share up to the epoch of the newest one. One whose share
    had another size, because there were fewer ranks, begins with the epoch of its checkpoint.

    Args:
        folder: the folder of the checkpoints of this rank.
        config: configuration of the run, with which it can be continued.
        options: when to write, and whether to continue.
        overwrite: whether checkpoints of an earlier run are removed.
        stages: the stages of the run.
        restarted: whether the job is one that was started again.

    Raises:
        UserError: see `RunCheckpoints` and `ClusterCheckpoints`; or the first rank cannot begin.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        options: CheckpointOptions,
        overwrite: bool,
        stages: PeerStages,
        restarted: bool = False,
    ) -> None:
        group, self._stages = stages.group, stages
        resume = options.resume or restarted
        # A rank that joins gets its state from the others.
        options = dataclasses.replace(options, resume=resume and not group.has_joined)
        if options.publish:
            RunPublisher(options.publish, config)  # every rank checks it
        is_first = group.rank == 0 and not group.has_joined
        own = options if is_first else dataclasses.replace(options, publish=None)
        super().__init__(folder, config, own, overwrite or group.has_joined, stages.reporter)
        self._options = options
        self._known: KnownCategories | None = None  # of the training data
        self._newest_stage, self._newest_rank = 0, 0
        self._run: ClusterCheckpoints | None = None
        self._last: CheckpointCallback | None = None
        stages.checkpoints = self
        if group.has_joined:
            return
        problem: UserError | None = None
        if group.rank == 0:
            try:
                self._run = ClusterCheckpoints(
                    stages.out, config, options.resume, overwrite, stages.cluster.start_id
                )
            except UserError as e:
                problem = e
        if group.all_sum([problem is not None], "the beginning of the run")[0]:
            raise problem or UserError("the first peer cannot begin, see its error")
        latest = self._newest()
        stage, epoch, step = 0, 0, -1
        if latest is not None:
            values = latest.manifest.values
            stage = int(str(self._saved("phase")).removeprefix("stage "))
            epoch, step = values["position"]["epoch"], latest.manifest.step
        found = [tuple(map(int, row)) for row in group.gather_all([stage, epoch, step])]
        self._newest_rank = found.index(max(found))
        self._newest_stage, epoch, _ = max(found)
        group.epoch = stages.epochs_before(self._newest_stage) + epoch

    def take_root(self, stage: int) -> int:
        """Returns the rank that sends its weights to all others when a training begins.

        The first call for the stage of the newest checkpoint returns the rank that has this
        checkpoint. All other calls return rank 0.

        Args:
            stage: the number of the stage.
        """
        is_first = stage == self._newest_stage and not self._stages.group.shrinks
        root = self._newest_rank if is_first else 0
        self._newest_rank = 0
        return root

    def callback(self, *args: Any, **options: Any) -> CheckpointCallback | None:
        """See `RunCheckpoints.callback`. Only the first training continues from a checkpoint."""
        if self._last is not None and self._last.has_begun:
            self._options = dataclasses.replace(self._options, resume=False)
        callback = super().callback(*args, **options, may_differ=("num_examples",))
        self._schema = args[1]
        if self._publisher is not None:
            stage = self._stages.decisions.get(options["phase"].replace(" ", "-"))
            self._manager.on_written = self._publisher.publish if stage["final"] else None
        if callback is not None and self._last is not None:
            callback.continue_after(self._last)
        self._last = callback
        return callback

    def publish_with(self, known: KnownCategories | None) -> None:
        """See `RunCheckpoints.publish_with`."""
        super().publish_with(known)
        self._known = known

    def publish_final(self, model: tf.keras.Model) -> None:
        """See `RunCheckpoints.publish_final`. This rank may have become the first one."""
        if self._publisher is None and self._options.publish:
            self._publisher = RunPublisher(self._options.publish, self._config, self._reporter)
            self._publisher.known = self._known
        super().publish_final(model)

    def remove(self) -> None:
        """Removes the checkpoints of this rank and, on the first one, the stages."""
        super().remove()
        stages = self._stages
        if stages.group.rank == 0:
            run = self._run or ClusterCheckpoints(
                stages.out, self._config, True, False, stages.cluster.start_id
            )
            run.remove()


def make_group(config: RunConfig, **options: Any) -> PeerGroup:
    """The ranks of this job.

    Args:
        config: configuration of the run.
        **options: arguments of `PeerGroup`.

    Returns:
        The ranks.

    Raises:
        UserError: the ranks cannot do what the configuration says, or mpi4py is missing.
    """
    check_cluster(config, peers=True)
    from twml_ops.peers import PeerGroup

    try:
        return PeerGroup(timeout=TIMEOUT, **options)
    except ImportError as e:
        raise UserError(str(e)) from e


def rank_checkpoint_dir(out: Path, rank: int) -> Path:
    """Folder of the checkpoints of a rank until the run is complete."""
    return out.with_name(f"{out.name}.rank-{rank}.checkpoints")
