"""Tables in fewer bits: rows of sparse-linear kernels stored as int8 or bfloat16."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from twml_ops import core
from twml_ops._keras import all_layers
from twml_ops.layers import FieldEmbedding, SparseLinear
from twml_ops.ops._tape import tf_variable

TableFormat = Literal["float32", "bfloat16", "int8"]
"""How the tables of a SavedModel are stored; see `to_stock_tf`."""
RowFormat = Literal["float32", "bfloat16", "int8", "int4"]
"""How the rows of the tables of a scorer are stored; see `to_scorer`."""
_BITS = {"int8": 8, "int4": 4}


class StoredTable(NamedTuple):
    """A table [N, D] in its stored form: `rows`, times `scale` of the row if there is one.

    Attributes:
        rows: float32, int8, or bfloat16 as uint16 bit patterns, [N, D].
        scale: float32 [N], or None.
    """

    rows: NDArray[Any]
    scale: NDArray[np.float32] | None


def store_table(table: NDArray[np.float32], form: TableFormat) -> StoredTable:
    """Converts a table to its stored form.

    bfloat16 rounds to nearest, ties to even: the relative error of an item is at most 2^-8. int8
    scales each row by max |row| / 127: the error of an item is at most half the scale.

    Args:
        table: float32 [N, D].
        form: "float32", "bfloat16" or "int8".

    Returns:
        The stored table.

    Raises:
        ValueError: `form` is unknown, or an item is not finite for int8.
    """
    if form == "float32":
        return StoredTable(table, None)
    if form == "bfloat16":
        bfloat16 = tf.bfloat16.as_numpy_dtype  # of ml_dtypes
        return StoredTable(table.astype(bfloat16).view(np.uint16), None)
    if form != "int8":
        raise ValueError(f"tables must be 'float32', 'bfloat16' or 'int8', got {form!r}")
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise ValueError(
            f"tables must be finite to be stored as int8, got NaN or infinity in row {row}"
        )
    scale = (np.abs(table).max(axis=1, initial=0) / 127).astype(np.float32)
    divisor = np.where(scale > 0, scale, 1)
    return StoredTable(np.rint(table / divisor[:, None]).astype(np.int8), scale)


class StoredRows(NamedTuple):
    """A table [N, D] of which each row is stored by itself.

    Attributes:
        rows: float32 or uint16 (bfloat16) [N, D], or uint8 [N, R] with scale, offset and codes.
        attributes: what a step has to say about rows of uint8: the format and D.
    """

    rows: NDArray[Any]
    attributes: dict[str, Any]


def store_rows(table: NDArray[np.float32], form: RowFormat) -> StoredRows:
    """Converts a table to rows in the format of a scorer.

    int8 and int4 store a row as the nearest points of a grid of 256 or 16 points, with a scale and
    an offset for each row; see `core.quantize_rows` for the choice of the grid. A row of D items
    takes 8 + D or 8 + ceil(D / 2) bytes. Tables whose rows would not become smaller by that (of one
    or two columns) keep float32.

    Args:
        table: float32 [N, D].
        form: "float32", "bfloat16", "int8" or "int4".

    Returns:
        The stored rows.

    Raises:
        ValueError: `form` is unknown, or an item is not finite for int8 or int4.
    """
    if form not in ("float32", "bfloat16", *_BITS):
        raise ValueError(f"tables must be 'float32', 'bfloat16', 'int8' or 'int4', got {form!r}")
    units = table.shape[1]
    bits = _BITS.get(form)
    if bits is None:
        return StoredRows(store_table(table, form).rows, {})  # type: ignore[arg-type]
    if 8 + (units * bits + 7) // 8 >= 4 * units:
        return StoredRows(table, {})
    try:
        rows = core.quantize_scorer_rows(table, bits=bits)
    except ValueError as e:
        raise ValueError(f"tables must be finite to be stored as {form}: {e}") from e
    return StoredRows(rows, {"row_format": form, "units": units})


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
        """The given rows, float32 [K, D], and their scales [K] or None."""
        rows = tf.cast(tf.gather(self.rows, ids), tf.float32)
        return rows, None if self.scale is None else tf.gather(self.scale, ids)


def stored_variables(model: Any, form: TableFormat) -> dict[Any, StoredVariable]:
    """The stored table of each sparse-linear kernel and field embedding in `model`.

    Returns:
        `ref()` of the variable of a table → the stored table.
    """
    tables: list[Any] = []
    for layer in all_layers(model):
        if isinstance(layer, (SparseLinear, FieldEmbedding)):
            tables += layer.table_variables
    return {
        tf_variable(table).ref(): StoredVariable(
            store_table(tf_variable(table).numpy().astype(np.float32), form)
        )
        for table in tables
    }
