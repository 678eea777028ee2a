"""Rows of a table and of its slots begin anew: `layers.DynamicSparseLinear` and its optimizer.

The rows of a table are reset when they get a new id. The layer does not know the optimizer, so it
flags the rows, and the optimizer resets its slots before the next update.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.ops._library import library
from twml_ops.ops._tape import device_scope_of

_STALE = "_twml_ops_stale_slots"


def reset_rows(table: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Writes rows of a table in place, and marks them as changed for checkpoints.

    Args:
        table: [N, D], on the host.
        rows: int64 [E], unique, each in [0, N).
        values: [E, D], of the table's dtype.
    """
    tf.raw_ops.ResourceScatterUpdate(resource=table.handle, indices=rows, updates=values)
    library.twml_mark_changed_rows(table.handle, rows, all=False)


def mark_for_reset(table: tf.Variable, stale: tf.Variable, rows: tf.Tensor) -> None:
    """Flags rows whose slots the table's optimizer has to reset.

    Args:
        table: [N, D].
        stale: bool [N], the flags.
        rows: int64 [E], each in [0, N).
    """
    setattr(table, _STALE, stale)
    flags = tf.fill(tf.shape(rows), True)
    tf.raw_ops.ResourceScatterUpdate(resource=stale.handle, indices=rows, updates=flags)


def stale_slots(table: tf.Variable) -> tf.Variable | None:
    """The flags of `mark_for_reset`; None if there are none.

    Args:
        table: a table.
    """
    return getattr(table, _STALE, None)


def reset_stale_slots(
    table: tf.Variable,
    stale: tf.Variable,
    slots: Sequence[tf.Variable],
    initial_values: Sequence[float],
) -> None:
    """Sets the flagged rows of slots to their initial values, and takes the flags away.

    The rows count as changed rows of the table, with which checkpoints keep the slots.

    Args:
        table: [N, D], the variable of the slots.
        stale: bool [N], the flags.
        slots: [N, ...].
        initial_values: of each slot.
    """
    with device_scope_of(table):
        rows = tf.where(stale.read_value())[:, 0]
        for slot, value in zip(slots, initial_values, strict=True):
            shape = tf.concat([tf.shape(rows), slot.shape[1:]], axis=0)
            fresh = tf.fill(shape, tf.cast(value, slot.dtype))
            tf.raw_ops.ResourceScatterUpdate(resource=slot.handle, indices=rows, updates=fresh)
        library.twml_mark_changed_rows(table.handle, rows, all=False)
        none = tf.fill(tf.shape(rows), False)
        tf.raw_ops.ResourceScatterUpdate(resource=stale.handle, indices=rows, updates=none)
