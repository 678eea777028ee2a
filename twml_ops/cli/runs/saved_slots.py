"""The state of the optimizer of a finished run, for the runs that go on from it."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    NamedVariable,
    restore,
    variables_of,
)
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.folder import SLOTS, read_run


def check(config: RunConfig) -> None:
    """Checks that a run has one optimizer, whose slots can be saved.

    Args:
        config: configuration of the run.

    Raises:
        UserError: slots are to be saved, and the run has several models or cannot be continued.
    """
    if not config.save_slots:
        return
    if config.ensemble > 1:
        raise UserError("--save-slots: an ensemble has several optimizers and cannot be continued")
    if config.negative_rate != 1:
        raise UserError("--save-slots: a run with --negative-rate cannot be continued")
    if config.cluster is not None:
        raise UserError("--save-slots: a cluster does not save the slots of its servers")


def write(folder: Path, model: tf.keras.Model) -> None:
    """Writes the slots and the step of the optimizer, without its learning rate.

    Args:
        folder: of the run.
        model: the trained model, compiled.
    """
    with CheckpointManager(folder / SLOTS, keep=1, background=False) as manager:
        step = int(tf.convert_to_tensor(model.optimizer.iterations))
        manager.save(step, _state(model), {})


def restore_slots(config: RunConfig, model: tf.keras.Model) -> None:
    """Gives the optimizer the slots of the run that the training starts from, if it has them.

    The slots start anew if the earlier run has another optimizer.

    Args:
        config: configuration of the new run.
        model: the model of the earlier run, compiled.

    Raises:
        UserError: the saved slots are damaged.
    """
    if config.from_run is None:
        return
    folder = Path(config.from_run)
    if read_run(folder).get("optimizer") != config.optimizer or not (folder / SLOTS).is_dir():
        return
    found = CheckpointManager(folder / SLOTS).latest()
    if found is None:
        raise UserError(f"{folder / SLOTS}: has no valid slots of the optimizer")
    model.optimizer.build(model.trainable_variables)
    try:
        restore(found, _state(model))
    except CheckpointError as e:
        raise UserError(str(e)) from e


def _state(model: tf.keras.Model) -> list[NamedVariable]:
    return [
        v
        for v in variables_of(model)
        if v.name.startswith("optimizer/") and not v.label.endswith("learning_rate")
    ]
