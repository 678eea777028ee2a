"""Tables in fewer bits: each row of a sparse-linear kernel stored as int8 or bfloat16."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from twml_ops._keras import all_layers
from twml_ops.layers import SparseLinear
from twml_ops.ops._tape import tf_variable

TableFormat = Literal["float32", "bfloat16", "int8"]


class StoredTable(NamedTuple):
    """A table [N, D] as stored: `rows` times, if there is one, `scale` of the row.

    Attributes:
        rows: float32, int8, or bfloat16 as the upper halves of float32, uint16 [N, D].
        scale: float32 [N], or None.
    """

    rows: NDArray[Any]
    scale: NDArray[np.float32] | None


def store_table(table: NDArray[np.float32], form: TableFormat) -> StoredTable:
    """Rounds a table.

    bfloat16: to nearest, ties to even: relative error at most 2^-8 an item. int8: each row by its
    own scale, max |row| / 127: error at most half a scale an item. A row with a NaN or an infinity
    has no scale.

    Raises:
        ValueError: an unknown `form`, or items that are not finite in int8.
    """
    if form == "float32":
        return StoredTable(table, None)
    if form == "bfloat16":
        bits = table.view(np.uint32)
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        rounded = np.where(np.isnan(table), bits | 0x400000, rounded)
        return StoredTable((rounded >> 16).astype(np.uint16), None)
    if form != "int8":
        raise ValueError(f"tables must be 'float32', 'bfloat16' or 'int8', got {form!r}")
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise ValueError(f"a table to be stored as int8 must be finite, row {row} is not")
    scale = (np.abs(table).max(axis=1, initial=0) / 127).astype(np.float32)
    divisor = np.where(scale > 0, scale, 1)
    return StoredTable(np.rint(table / divisor[:, None]).astype(np.int8), scale)


class StoredVariable(tf.Module):
    """A stored table as variables of a SavedModel."""

    def __init__(self, stored: StoredTable) -> None:
        super().__init__()
        rows: Any = stored.rows
        if rows.dtype == np.uint16:
            rows = tf.bitcast(tf.constant(rows), tf.bfloat16)
        self.rows = tf.Variable(rows, trainable=False)
        self.scale = None if stored.scale is None else tf.Variable(stored.scale, trainable=False)

    def gather(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """`(rows float32 [K, D], scale [K] or None)` of the given ids."""
        rows = tf.cast(tf.gather(self.rows, ids), tf.float32)
        return rows, None if self.scale is None else tf.gather(self.scale, ids)


def stored_variables(model: Any, form: TableFormat) -> dict[Any, StoredVariable]:
    """Of each sparse-linear kernel in `model`: its variable's `ref()` → the stored table."""
    return {
        tf_variable(kernel).ref(): StoredVariable(
            store_table(tf_variable(kernel).numpy().astype(np.float32), form)
        )
        for layer in all_layers(model)
        if isinstance(layer, SparseLinear)
        for kernel in layer.kernels
    }
