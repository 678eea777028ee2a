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
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow as tf

from twml_ops import models
from twml_ops.checkpoint import CheckpointCallback
from twml_ops.data import InputPosition, Source, TrainingParts
from twml_ops.distribute import (
    ChiefBuiltModel,
    ChiefDecisions,
    Cluster,
    ClusterError,
    exit_on_cluster_error,
)
from twml_ops.training.callbacks import mean_losses
from twml_ops.training.checkpoints import RunCheckpoints
from twml_ops.training.cluster import WorkerData, check_cluster, stages_dir, worker_data
from twml_ops.training.cluster_checkpoints import ClusterCheckpoints
from twml_ops.training.cluster_runner import ClusterRunner
from twml_ops.training.cluster_stages import ClusterStages, Stage, epoch_name
from twml_ops.training.config import PEER_OPTIONS, CheckpointOptions, RunConfig
from twml_ops.training.errors import RunInterrupted, UserError
from twml_ops.training.labels import joined, joined_outputs, weighted
from twml_ops.training.reporter import SILENT, Bar, Reporter
from twml_ops.training.results import FittedModel, History, LossPoint
from twml_ops.training.runners import LocalRunner, Monitored
from twml_ops.training.sources import LARGE_BATCH_SIZE

if TYPE_CHECKING:
    from twml_ops.peers import PeerGroup

TIMEOUT = 300.0
_START = "start"  # in the options of a rank: tells the starts of jobs apart


def peer_options() -> dict[str, Any]:
    """The arguments of `PeerAveraging` that the launcher has given this rank."""
    options: dict[str, Any] = json.loads(os.environ[PEER_OPTIONS])
    options.pop(_START, None)
    return options


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
            except PeerFailure:
                self._group.survive()
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
        """See `ClusterStages.build`. A chief that may have to train it again builds it again."""
        is_kept = self._trained is not None and self._trained.number >= number
        again = not is_kept and not self._ended(number)[1]
        path, cluster = self.model_file(number), self.cluster
        return ChiefBuiltModel(make_model, path, cluster, self._timeout, again=again)

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
    start = json.loads(os.environ[PEER_OPTIONS]).get(_START, "")
    workers = [f"rank {rank}" for rank in range(group.full_size)]
    return Cluster(workers=workers, index=group.rank, start=start)


class PeerTraining(LocalRunner):
    """The part of a rank in the training of a stage.

    A rank trains on its share of the batches, and exchanges weights with the others
    (`PeerAveraging`). Each epoch ends with the average of its snapshots over all ranks. All that
    takes time begins with the first epoch: a process that is started again does not train in the
    stages that have ended.

    Args:
        stages: the stages of the run.
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

    def __init__(
        self, stages: PeerStages, number: int, stage: Stage, model: ChiefBuiltModel, train: Source
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
        except PeerFailure:  # before the training began
            group.survive()
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
        model, batches = self._evaluated
        found = model.evaluate(batches, return_dict=True, verbose=0)
        return mean_losses({f"val_{name}": value for name, value in found.items()})

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

    def release(self) -> None:
        """Releases the model."""
        self._models = self._evaluated = self._averaging = None


class _Bars(Reporter):
    """Is told of the progress of an epoch. Its end is told by the runner, after the evaluation."""

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


class PeerCheckpoints(RunCheckpoints):
    """The checkpoints of a rank, and the stages of the run. Making them is a collective call.

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
        super().__init__(folder, config, options, overwrite or group.has_joined, stages.reporter)
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
        """The rank whose weights all ranks get when they begin to train: that of the newest
        checkpoint, if it is of the stage; otherwise, and later, the first one.

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
        if callback is not None and self._last is not None:
            callback.continue_after(self._last)
        self._last = callback
        return callback

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
