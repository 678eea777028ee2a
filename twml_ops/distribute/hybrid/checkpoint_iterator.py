"""Reading the checkpoints of a running cluster, one after the other, as ordinary models."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.hybrid import checkpoint, model_weights
from twml_ops.distribute.hybrid.checkpoint_files import MANIFEST
from twml_ops.distribute.hybrid.parameter_server_placement import ParameterServerPlacement

_POLL_SECONDS = 0.2


def iter_checkpoints(
    model_builder: Callable[[], tf.keras.Model],
    checkpoint_dir: str | os.PathLike[str],
    until: int | None = None,
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

    Yields:
        (step, model), the same model object each time. The iteration ends after a checkpoint of
        step `until` or later, or when the folder has been removed after it had existed.

    Raises:
        ValueError: A checkpoint is of another model.
    """
    folder = str(checkpoint_dir)
    without_servers = ParameterServerPlacement("", [], tf.float32, False)
    with placement.placement_scope(without_servers):
        without_tables = model_builder()
    model = model_builder()
    last_read, folder_existed = "", False
    while True:
        newest = checkpoint.latest(folder)
        if newest is None or newest == last_read:
            if folder_existed and not tf.io.gfile.exists(folder):
                return
            folder_existed = tf.io.gfile.exists(folder)
            time.sleep(_POLL_SECONDS)
            continue
        last_read, folder_existed = newest, True
        try:
            step, tables = checkpoint.read(newest, without_servers.tables, without_tables)
        except (tf.errors.NotFoundError, tf.errors.DataLossError):
            if tf.io.gfile.exists(os.path.join(newest, MANIFEST)):
                raise
            continue  # the chief has removed the checkpoint, since there is a newer one
        model_weights.copy_weights(without_tables, model, tables)
        yield step, model
        if until is not None and step >= until:
            return
