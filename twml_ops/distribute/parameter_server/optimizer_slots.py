"""The optimizer's slots of a run, from and to an ordinary model.

A run begins with the slots of an earlier training (`SavedSlots`, `assign_slots`), and a trained
model gets the slots of its run (`read_slots`). Checkpoints of the run have slots of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server.checkpoint import dense_variables
from twml_ops.distribute.parameter_server.state import RunState, component_optimizers, optimizer_of
from twml_ops.distribute.parameter_server.tables import (
    RemoteRows,
    RemoteTable,
    pairs_of_tables,
)
from twml_ops.placement import placement_of


@dataclasses.dataclass(frozen=True)
class SavedSlots:
    """The step and the slots of the optimizer of an earlier training, with which a run begins.

    Attributes:
        step: The updates that the optimizer has made before. It is equal in all processes.
        read: () -> an ordinary model with the layers of the run, compiled with an optimizer that
            is built and has the slots. Only the chief calls it, and only if it initializes the
            servers.
    """

    step: int
    read: Callable[[], tf.keras.Model]


def assign_slots(state: RunState, model: tf.keras.Model, source: tf.keras.Model) -> None:
    """Copies the slots of an ordinary model to a run.

    Args:
        state: The shared state of the run.
        model: The model of the run.
        source: A compiled model of the same layers, with whole tables.
    """
    for remote, slots in _tables(model, source):
        for i, saved in enumerate(slots):
            value = saved.read_value()
            for part, slots_of_part in enumerate(remote.slots):
                own = remote.division.slice(value, part, value.shape.rank)
                slots_of_part[i].assign(own)
    for variable, saved in _dense(state, model, source):
        variable.assign(saved.read_value())


def read_slots(state: RunState, model: tf.keras.Model, target: tf.keras.Model) -> None:
    """Copies the slots of a run, and the step of its optimizer, to an ordinary model.

    Args:
        state: The shared state of the run.
        model: The model of the run.
        target: A compiled model of the same layers, with whole tables.
    """
    for remote, slots in _tables(model, target):
        for i, slot in enumerate(slots):
            shards, place = [shard[i] for shard in remote.slots], placement_of(slot)
            if place.in_file:
                shape = place.whole_shape(slot)
                place.assign(slot, RemoteRows(remote.division, shards, shape))
            else:
                slot.assign(remote.division.merge([s.fetch() for s in shards], slot.shape))
    for variable, slot in _dense(state, model, target):
        slot.assign(variable.numpy())
    step = int(state.step.numpy()) + state.steps_before
    for each in component_optimizers(target.optimizer):
        each.iterations.assign(tf.cast(step, each.iterations.dtype))


def _tables(
    model: tf.keras.Model, plain: tf.keras.Model
) -> Iterator[tuple[RemoteTable, list[tf.Variable]]]:
    """Yields each trained table of the run and its slots in the ordinary model."""
    for remote, table in pairs_of_tables(model, plain):
        if remote.trainable:
            yield remote, optimizer_of(plain.optimizer, table).slots_of(table)


def _dense(
    state: RunState, model: tf.keras.Model, plain: tf.keras.Model
) -> Iterator[tuple[Any, tf.Variable]]:
    """Yields each slot of a dense weight in the run and in the ordinary model."""
    tables = {id(table) for _, table in pairs_of_tables(model, plain)}
    weights = [v for v in plain.weights if tf.as_dtype(v.dtype).is_floating and id(v) not in tables]
    found = dense_variables(state)
    for i, weight in enumerate(weights):
        if f"{i}/0" not in found:
            continue
        for j, slot in enumerate(optimizer_of(plain.optimizer, weight).slots_of(weight)):
            yield found[f"{i}/{j}"], slot
