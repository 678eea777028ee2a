"""`field_rows`: the rows of fields that share one table, as a batch of a sparse product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library
from twml_ops.ops._shared_groups import declare_fields
from twml_ops.ops.stock import check


def field_rows(
    ids: Any,
    num_rows: Sequence[int],
    *,
    first_row: int = 0,
    pooled: bool = False,
    out_of_range: str = "wrap",
) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of a table for ids of its fields, whose rows follow one another in the table.

    A negative id, which stands for a missing value, has the first row of its field. Other ids have
    the row 1 + id mod (number of rows - 1) of their field. The gradients and updates of tables that
    are multiplied by the result as a binary batch group its entries field by field, in less time.

    Args:
        ids: int32 or int64 [B, F].
        num_rows: Number of rows of each field, at least 2.
        first_row: First row of the first field.
        pooled: Whether the row splits divide the entries into a row for each example, not for each
            id.
        out_of_range: "wrap", or "error": an id that is not below the number of rows of its field
            minus 1 is an error.

    Returns:
        `(rows, row_splits)`: int64 [B F], and int64 [B F + 1] or, if pooled, [B + 1].

    Raises:
        ValueError: Some `num_rows` is less than 2, or `ids` does not have F columns.
        tf.errors.InvalidArgumentError: The same, where the shapes are not known before; or an id is
            out of range.
    """
    ids = tf.convert_to_tensor(ids, dtype_hint=tf.int64)
    sizes = [int(n) for n in num_rows]
    if not sizes or min(sizes) < 2 or first_row < 0:
        raise ValueError(
            "num_rows must be integers of at least 2, and first_row not negative, got "
            f"{num_rows!r} and {first_row!r}"
        )
    if not ids.shape.is_compatible_with([None, len(sizes)]):
        raise ValueError(f"ids must be [B, {len(sizes)}], got {ids.shape}")
    if out_of_range == "error":
        ids = _checked(ids, sizes)
    rows, row_splits = library.twml_field_rows(
        ids, num_rows=sizes, first_row=first_row, pooled=pooled
    )
    declare_fields(rows, sizes, first_row)
    return rows, row_splits


def _checked(ids: tf.Tensor, num_rows: Sequence[int]) -> tf.Tensor:
    """The ids [B, F], of which each must be below the number of rows of its field minus 1."""
    limits = tf.constant([n - 1 for n in num_rows], ids.dtype)
    outside = tf.reshape(ids >= limits, [-1])
    first = check.index_of_first(outside)
    too_large = check.Precondition(
        lambda: tf.logical_not(tf.reduce_any(outside)),
        "ids must be below the number of rows of their field minus 1 (or out_of_range must be "
        "'wrap'), got {} at position {}",
        (lambda: check.item_or_zero(tf.reshape(ids, [-1]), first), lambda: first),
    )
    checked: tf.Tensor = check.require(ids, too_large)
    return checked


tf.no_gradient("Twml>FieldRows")
