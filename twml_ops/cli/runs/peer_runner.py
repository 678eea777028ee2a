"""Training peer to peer, as one of the ranks that `twml-ops launch --peers` or `mpirun` starts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from rich.console import Console

from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.config import AUTO, RunConfig
from twml_ops.cli.runs.local_runner import LocalRunner
from twml_ops.cli.runs.runner import FittedModel, Monitored
from twml_ops.data import Source

if TYPE_CHECKING:
    from twml_ops.peers import PeerGroup

OPTIONS = "TWML_OPS_PEERS"
"""Environment variable: the arguments of `PeerAveraging` as JSON. It makes a process a rank."""


def is_rank() -> bool:
    """Whether this process is a rank of a job."""
    return OPTIONS in os.environ


class PeerRunner(LocalRunner):
    """Trains on this rank's share of the data, and exchanges weights with the others.

    Args:
        config: configuration of the run, with a learning rate.
        log_dir: folder of the TensorBoard logs; None: there are none.
        console: terminal on which the progress is shown.
        checkpoints: those of this rank; None: none are written.
        group: the ranks.
    """

    def __init__(
        self,
        config: RunConfig,
        log_dir: Path | None,
        console: Console,
        checkpoints: RunCheckpoints | None,
        group: PeerGroup,
    ) -> None:
        super().__init__(config, log_dir, console, checkpoints)
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

        group = self._group
        averaging = PeerAveraging(group, **json.loads(os.environ[OPTIONS]))
        fitted = super().fit(
            model,
            train.shard(group.rank, group.size),
            monitored if group.rank == 0 else None,
            epochs=epochs,
            callbacks=[*callbacks, averaging],
        )
        if group.rank == 0 and averaging.counts is not None:
            counts = dataclasses.asdict(averaging.counts)
            self._console.print(", ".join(f"{value} {name}" for name, value in counts.items()))
        first = group.rank == 0
        group.close()
        if not first:
            raise SystemExit(0)
        return fitted


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
    if config.validation != "none" and config.epochs is None:
        raise UserError("peers train a given number of epochs: use --epochs")
    if config.storage is not None:
        raise UserError("--storage: peers need tables in memory")
    from twml_ops.peers import PeerGroup

    try:
        return PeerGroup(timeout=300, **options)
    except ImportError as e:
        raise UserError(str(e)) from e


def checkpoint_dir(out: Path, rank: int) -> Path:
    """Folder of the checkpoints of a rank until the run is complete."""
    return out.with_name(f"{out.name}.rank-{rank}.checkpoints")
