"""Reading the checkpoints of a running cluster, one after the other, as ordinary models."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator

import tensorflow as tf

from twml_ops import placement
from twml_ops.checkpoint import CheckpointDamaged, CheckpointManager, CheckpointReader
from twml_ops.checkpoint.manifest import MANIFEST
from twml_ops.distribute.hybrid import checkpoint, model_weights
from twml_ops.distribute.hybrid.parameter_server_placement import ParameterServerPlacement

_POLL_SECONDS = 0.2


def iter_checkpoints(
    model_builder: Callable[[], tf.keras.Model],
    checkpoint_dir: str | os.PathLike[str],
    until: int | None = None,
    accept: Callable[[CheckpointReader], bool] | None = None,
) -> Iterator[tuple[int, tf.keras.Model]]:
    """Iterates over the checkpoints of a run, each time the newest, and waits for the next one.

    This is the loop of an evaluator task. The evaluator is not connected to the cluster: it opens
    no port, and the other processes notice neither its speed nor its end. Tables are whole in this
    process. While a table is read, the process needs about three times the memory of that table.

    Args:
        model_builder: The `model_builder` of the run's `HybridTrainer`. Its models must have all
            their weights before they are called, as functional models do.
        checkpoint_dir: The `checkpoint_dir` of the run.
        until: The last step of the run; None: the iteration does not end at a step.
        accept: Whether a checkpoint is of the run, and not one that another run has left in the
            folder; None: all are.

    Yields:
        (step, model), the same model object each time. The iteration ends after a checkpoint of
        step `until` or later, or when the folder has been removed after it had existed.

    A checkpoint that is damaged is skipped with a warning.

    Raises:
        ValueError: A checkpoint is of another model.
    """
    manager = CheckpointManager(str(checkpoint_dir))
    without_servers = ParameterServerPlacement("", [], tf.float32, False)
    with placement.placement_scope(without_servers):
        without_tables = model_builder()
    model = model_builder()
    last_read, folder_existed = "", False
    while True:
        found = [c for c in manager.all() if accept is None or accept(c)]
        if not found or found[-1].folder.name == last_read:
            exists = manager.folder.is_dir()
            if folder_existed and not exists:
                return
            folder_existed = exists
            time.sleep(_POLL_SECONDS)
            continue
        newest = found[-1]
        last_read, folder_existed = newest.folder.name, True
        try:
            tables = checkpoint.read(newest, without_servers.tables, without_tables)
        except CheckpointDamaged as e:
            if (newest.folder / MANIFEST).exists():
                warnings.warn(f"{e}; the next checkpoint is waited for", RuntimeWarning, 2)
            continue  # or the chief has removed the checkpoint, since there is a newer one
        model_weights.copy_weights(without_tables, model, tables)
        yield newest.manifest.step, model
        if until is not None and newest.manifest.step >= until:
            return
