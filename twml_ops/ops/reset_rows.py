"""Rows of a table and of its slots begin anew: `layers.DynamicSparseLinear` and its optimizer.

The rows of a table are reset when they get a new id. The layer does not know the optimizer, so it
flags the rows, and the optimizer resets its slots before the next update. Rows that were looked up
since the last update do not get a new id, because gradients of them may wait for the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from twml_ops.ops._library import library
from twml_ops.ops._tape import device_scope_of

_OWNER = "_twml_ops_dynamic_rows"


class DynamicRows(NamedTuple):
    """The variables of a table whose rows get new ids, for its optimizer.

    Attributes:
        stale_slots: bool [N], the rows whose slots belong to an earlier id.
        header: int64, of which item 0 is the number of lookups so far.
        updated_at: int64 scalar, the number of lookups before the last update.
    """

    stale_slots: tf.Variable
    header: tf.Variable
    updated_at: tf.Variable


def reset_rows(
    table: tf.Variable, rows: tf.Tensor, values: tf.Tensor, dynamic: DynamicRows
) -> None:
    """Writes rows of a table in place, marks them as changed, and flags their slots.

    Args:
        table: [N, D], on the host.
        rows: int64 [E], unique, each in [0, N).
        values: [E, D], of the table's dtype.
        dynamic: what the table's optimizer will find.
    """
    setattr(table, _OWNER, dynamic)
    _scatter(dynamic.stale_slots, rows, tf.fill(tf.shape(rows), True))
    _scatter(table, rows, values)
    library.twml_mark_changed_rows(table.handle, rows, all=False)


def dynamic_rows_of(table: tf.Variable) -> DynamicRows | None:
    """What `reset_rows` was given for a table; None if its rows keep their ids.

    Args:
        table: a table.
    """
    return getattr(table, _OWNER, None)


def begin_update(
    table: tf.Variable,
    dynamic: DynamicRows,
    slots: Sequence[tf.Variable],
    initial_values: Sequence[float],
) -> None:
    """Sets the flagged rows of slots to their initial values, and releases all rows.

    The rows count as changed rows of the table, with which checkpoints keep the slots.

    Args:
        table: [N, D], the variable that is going to be updated.
        dynamic: the dynamic of the table.
        slots: [N, ...].
        initial_values: the initial values of each slot.
    """
    with device_scope_of(table):
        rows = tf.where(dynamic.stale_slots.read_value())[:, 0]
        for slot, value in zip(slots, initial_values, strict=True):
            shape = tf.concat([tf.shape(rows), slot.shape[1:]], axis=0)
            _scatter(slot, rows, tf.fill(shape, tf.cast(value, slot.dtype)))
        library.twml_mark_changed_rows(table.handle, rows, all=False)
        _scatter(dynamic.stale_slots, rows, tf.fill(tf.shape(rows), False))
        dynamic.updated_at.assign(dynamic.header.read_value()[0])


def _scatter(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
