"""Training peer to peer, as one of the ranks that `twml-ops launch --peers` or `mpirun` starts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from twml_ops.checkpoint import CheckpointCallback
from twml_ops.data import InputPosition, Source
from twml_ops.data.source import RowRange
from twml_ops.training.checkpoints import RunCheckpoints
from twml_ops.training.config import AUTO, PEER_OPTIONS, CheckpointOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import joined_outputs
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.results import FittedModel
from twml_ops.training.runners import LocalRunner, Monitored

if TYPE_CHECKING:
    from twml_ops.peers import PeerGroup

"""Environment variable: the arguments of `PeerAveraging` as JSON. It makes a process a rank."""


class PeerRunner(LocalRunner):
    """Trains on this rank's share of the data, and exchanges weights with the others.

    Args:
        config: configuration of the run, with a learning rate.
        log_dir: folder of the TensorBoard logs; None: there are none.
        reporter: is told what happens.
        checkpoints: the checkpoints of this rank; None: none are written.
        group: the ranks.
    """

    def __init__(
        self,
        config: RunConfig,
        log_dir: Path | None,
        reporter: Reporter,
        checkpoints: RunCheckpoints | None,
        group: PeerGroup,
    ) -> None:
        super().__init__(config, log_dir, reporter, checkpoints)
        self._group = group

    def fit(
        self,
        model: tf.keras.Model,
        train: Source,
        monitored: Monitored | None,
        *,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
    ) -> FittedModel:
        """Trains a model; see `Runner.fit`. The process of a rank that is not the first ends here.

        Raises:
            SystemExit: this is not the first rank; the status is 0.
        """
        from twml_ops.distribute import PeerAveraging
        from twml_ops.peers import PeerFailure

        group, checkpoints = self._group, self._checkpoints
        root = checkpoints.newest_rank if isinstance(checkpoints, PeerCheckpoints) else 0
        if group.rank:
            monitored = None
        joint = joined_outputs(model, train.schema.labels)
        history = self._compile(joint, train, monitored)
        while group.epoch < epochs:  # again after ranks were lost
            options = json.loads(os.environ[PEER_OPTIONS])
            averaging = PeerAveraging(group, root=root, regroup=True, **options)
            every = [*callbacks, averaging]
            try:
                share = share_of(train, group)
                self._train(joint, model, share, monitored, epochs, every, history, group.epoch)
            except PeerFailure:  # before the training began
                group.survive()
            root = 0
        fitted = self._fitted(model, joint, history)
        if group.rank == 0 and averaging.counts is not None:
            self._reporter.exchanges(dataclasses.asdict(averaging.counts))
        first = group.rank == 0
        group.close()
        if not first:
            raise SystemExit(0)
        return fitted


class PeerCheckpoints(RunCheckpoints):
    """The checkpoints of a rank. Making them is a collective call.

    Ranks write their checkpoints at different moments, and some may have none. When a job
    continues, all ranks get the weights of the newest checkpoint. A rank whose own checkpoint is of
    an earlier epoch skips the rest of its share up to the epoch of the newest one. One whose share
    had another size, because there were fewer ranks, begins with the epoch of its checkpoint.

    Args:
        folder: the folder of the checkpoints of this rank.
        config: configuration of the run, with which it can be continued.
        options: when to write, and whether to continue.
        overwrite: whether checkpoints of an earlier run are removed.
        group: the ranks.
        reporter: is told what happens.

    Attributes:
        newest_rank: the rank with the newest checkpoint; 0 if there are none.

    Raises:
        UserError: see `RunCheckpoints`.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        options: CheckpointOptions,
        overwrite: bool,
        group: PeerGroup,
        reporter: Reporter = SILENT,
    ) -> None:
        # A rank that joins gets its state from the others.
        options = dataclasses.replace(options, resume=options.resume and not group.has_joined)
        super().__init__(folder, config, options, overwrite or group.has_joined, reporter)
        self._group, self.newest_rank = group, 0
        if group.has_joined:
            return
        latest = self._newest()
        epoch, step = 0, -1
        if latest is not None:
            epoch, step = latest.manifest.values["position"]["epoch"], latest.manifest.step
        found = [tuple(map(int, row)) for row in group.gather_all([epoch, step])]
        self.newest_rank = found.index(max(found))
        group.epoch = max(found)[0]

    def callback(self, *args: Any, **options: Any) -> CheckpointCallback | None:
        """See `RunCheckpoints.callback`. Only the first call continues from a checkpoint."""
        callback = super().callback(*args, **options, may_differ=("num_examples",))
        if callback is not None and callback.position.epoch < self._group.epoch:
            callback.start_at(InputPosition(options["seed"], self._group.epoch))
        self._options = dataclasses.replace(self._options, resume=False)
        return callback


def share_of(source: Source, group: PeerGroup) -> Source:
    """A rank's share of the training data. A collective call.

    Args:
        source: the training data of all ranks.
        group: the ranks.

    Returns:
        `source.shard`, which parses no other examples; or, if the units of the files are too few to
        deal them evenly (the largest share would be more than 1.5 times the smallest one), an equal
        number of successive examples.

    Raises:
        UserError: there are fewer examples than ranks.
    """
    part = source.shard(group.rank, group.size)
    counts = group.gather_all([part.num_examples()], "the numbers of examples")
    if 2 * counts.max() <= 3 * counts.min():
        return part
    total = source.num_examples()
    if total < group.size:
        raise UserError(f"{source.name}: {total} examples are too few for {group.size} peers")
    begin, end = (total * rank // group.size for rank in (group.rank, group.rank + 1))
    return RowRange(source, begin, end)


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
    if config.model == AUTO or config.ensemble > 1:
        raise UserError("peers train one model: --model auto and --ensemble need one process")
    if config.validation not in ("auto", "none") and config.epochs is None:
        raise UserError("--validation: peers train for a fixed number of epochs, --epochs")
    if config.storage is not None:
        raise UserError("--storage: peers need tables in memory")
    from twml_ops.peers import PeerGroup

    try:
        return PeerGroup(timeout=300, **options)
    except ImportError as e:
        raise UserError(str(e)) from e


def rank_checkpoint_dir(out: Path, rank: int) -> Path:
    """Folder of the checkpoints of a rank until the run is complete."""
    return out.with_name(f"{out.name}.rank-{rank}.checkpoints")
