"""An evaluator's view of a run: its checkpoints, one after the other, as ordinary models."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.hybrid import checkpoint, model_weights
from twml_ops.distribute.hybrid.tables import ParameterServerPlacement

_PAUSE_SECONDS = 0.2


def iter_checkpoints(
    model_builder: Callable[[], tf.keras.Model],
    checkpoint_dir: str | os.PathLike[str],
    until: int | None = None,
) -> Iterator[tuple[int, tf.keras.Model]]:
    """The model as a run's checkpoints have it, the newest each time; waits for the next.

    What an evaluator task does. It is no part of the cluster: it opens no port, and neither its
    pace nor its death is noticed by the others. Tables are whole here: while one is read, this
    process needs memory for it about three times.

    Args:
        model_builder: that of the run's `HybridTrainer`; its models must have their weights before
            they are called, as functional ones do.
        checkpoint_dir: that of the run.
        until: the run's last step; None: there is no last one.

    Yields:
        (step, model), the same model each time. Ends after a checkpoint of step `until` or later,
        or when the folder, once it was there, has gone.

    Raises:
        ValueError: the checkpoint is of another model.
    """
    folder = str(checkpoint_dir)
    nowhere = ParameterServerPlacement("", [], tf.float32, False)
    with placement.placement_scope(nowhere):
        without_tables = model_builder()
    model = model_builder()
    seen, there = "", False
    while True:
        newest = checkpoint.latest(folder)
        if newest is None or newest == seen:
            if there and not tf.io.gfile.exists(folder):
                return
            there = tf.io.gfile.exists(folder)
            time.sleep(_PAUSE_SECONDS)
            continue
        seen, there = newest, True
        try:
            step, tables = checkpoint.read(newest, nowhere.tables, without_tables)
        except (tf.errors.NotFoundError, tf.errors.DataLossError):
            if tf.io.gfile.exists(os.path.join(newest, checkpoint.MANIFEST)):
                raise
            continue  # the chief has removed it for a newer one
        model_weights.copy_weights(without_tables, model, tables)
        yield step, model
        if until is not None and step >= until:
            return
