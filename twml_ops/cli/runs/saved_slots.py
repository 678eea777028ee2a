"""The state of the optimizer of a finished run, for the runs that go on from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import models
from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    NamedVariable,
    restore,
    variables_of,
)
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.folder import SLOTS, read_run
from twml_ops.cli.runs.trained_run import TrainedRun


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
        folder: the folder of the run.
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
    state: list[Any] = _state(model)
    enlarged = [v for v in state if not _fits(v, found)]
    if enlarged:
        rows = _rows_of_tables(TrainedRun(folder).model, model)
        names = {id(v.variable): v.name for v in variables_of(model)}
        by_table = {names[table]: each for table, each in rows.items() if table in names}
        state = [
            _EnlargedSlot(v, by_table[v.table]) if v in enlarged and v.table in by_table else v
            for v in state
        ]
    try:
        restore(found, state)
    except CheckpointError as e:
        raise UserError(str(e)) from e


class _EnlargedSlot:
    """A slot of a table that has more rows than when it was saved: the others have new slots."""

    def __init__(self, slot: NamedVariable, rows: np.ndarray) -> None:
        self.name, self.label, self.variable = slot.name, slot.label, slot.variable
        self._slot, self._rows = slot, rows

    def fits(self, dtype: str, shape: Sequence[int]) -> bool:
        """Whether the slot can have these rows."""
        mine = [len(self._rows), *self.variable.shape[1:]]
        return bool(self.variable.dtype.name == dtype and mine == list(shape))

    def assign(self, value: np.ndarray) -> None:
        """Sets the rows that were saved."""
        whole = np.array(self._slot.view())
        whole[self._rows] = value
        self._slot.assign(whole)


def _fits(variable: NamedVariable, found: CheckpointReader) -> bool:
    entry = found.entries.get(variable.name)
    return entry is None or variable.fits(entry.dtype, entry.shape)


def _rows_of_tables(before: tf.keras.Model, after: tf.keras.Model) -> dict[int, np.ndarray]:
    """The new positions of the rows of each table, by the identity of its variable."""
    try:
        tables = models.enlarged_tables(before, after)
    except ValueError:  # other layers: the slots belong to another model
        return {}
    return {id(t.after): t.rows for t in tables}


def _state(model: tf.keras.Model) -> list[NamedVariable]:
    return [
        v
        for v in variables_of(model)
        if v.name.startswith("optimizer/") and not v.label.endswith("learning_rate")
    ]
