"""cc/core/sparse_linear.h and csr.h in stock ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.bfloat16 import cast_to_float32


def sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """The op Twml>SparseLinear."""
    check.rank(weights, 2, "weights")
    preconditions = check.csr(ids, values, row_splits, binary)
    preconditions.append(check.ids_in_range(ids, tf.shape(weights)[0]))
    ids, row_splits = check.require_well_formed((ids, row_splits), *preconditions)
    unique_ids, positions = sorted_unique(ids)
    return sparse_product(positions, values, row_splits, tf.gather(weights, unique_ids), binary)


def resource_sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """The op Twml>ResourceSparseLinear; `weights` is the handle of a variable.

    Each row in use is read once, so the gradient has unique ascending ids.
    """
    dtype = check.variable_dtype(weights, "weights", 2, tf.float32, tf.bfloat16)
    shape = tf.raw_ops.VariableShape(input=weights, out_type=tf.int64)
    preconditions = check.csr(ids, values, row_splits, binary)
    preconditions.append(check.ids_in_range(ids, shape[0]))
    ids, row_splits = check.require_well_formed((ids, row_splits), *preconditions)
    unique_ids, positions = sorted_unique(ids)
    rows = tf.raw_ops.ResourceGather(resource=weights, indices=unique_ids, dtype=dtype)
    rows = rows if dtype == tf.float32 else cast_to_float32(rows)
    return sparse_product(positions, values, row_splits, rows, binary)


def multiply_each(
    multiply: Callable[..., tf.Tensor],
    ids: Sequence[tf.Tensor],
    values: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    binary: Sequence[bool],
) -> list[tf.Tensor]:
    """Calls `multiply` for each batch, as the op Twml>GroupedSparseLinear."""
    batches = zip(ids, values, row_splits, weights, binary, strict=True)
    return [multiply(*batch) for batch in batches]


def grouped_sparse_linear(*lists: Any, **binary: Any) -> list[tf.Tensor]:
    """The op Twml>GroupedSparseLinear."""
    return multiply_each(resource_sparse_linear, *lists, **binary)


def sparse_product(
    positions: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor, rows: tf.Tensor, binary: bool
) -> tf.Tensor:
    """The sparse batch times `rows` [U, D], where entry k uses rows[positions[k]].

    Entries are summed in their order.
    """
    positions = tf.cast(positions, tf.int64)
    rows_of_entries = tf.cast(tf.ragged.row_splits_to_segment_ids(row_splits), tf.int64)
    num_rows = tf.shape(row_splits, out_type=tf.int64)[0] - 1
    batch = tf.SparseTensor(
        tf.stack([rows_of_entries, positions], axis=1),
        tf.ones(tf.shape(positions)) if binary else values,
        tf.stack([num_rows, tf.shape(rows, out_type=tf.int64)[0]]),
    )
    return tf.sparse.sparse_dense_matmul(batch, rows)


def sorted_unique(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """`(unique_ids [U] ascending, positions [K])` with `unique_ids[positions] == ids`."""
    unique_ids = tf.sort(tf.unique(ids).y)
    return unique_ids, searchsorted(unique_ids, ids, "left")


def searchsorted(sorted_items: tf.Tensor, values: tf.Tensor, side: str) -> tf.Tensor:
    """`numpy.searchsorted`, int64. Unlike `tf.searchsorted` it accepts an empty `sorted_items`."""
    op = tf.raw_ops.LowerBound if side == "left" else tf.raw_ops.UpperBound
    found = op(sorted_inputs=sorted_items[tf.newaxis], values=values[tf.newaxis], out_type=tf.int64)
    return found[0]


def sum_duplicates(
    ids: tf.Tensor, rows: tf.Tensor, groups: Sequence[tf.Tensor] = ()
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>SumDuplicates; stock ops have no `groups`."""
    del groups
    check.rank(ids, 1, "ids")
    if rows.shape.rank == 0:
        raise check.invalid_argument("rows must have rank 1 or more, got a scalar")
    space = min(ids.dtype.max + 1, tf.int64.max)
    ids = check.require_well_formed(ids, check.ids_in_range(ids, space), one_row_per_id(ids, rows))
    return sum_duplicates_unchecked(ids, rows)


def sum_duplicates_unchecked(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """`sum_duplicates` without its checks."""
    unique_ids, positions = sorted_unique(ids)
    return unique_ids, tf.math.unsorted_segment_sum(rows, positions, tf.size(unique_ids))


def one_row_per_id(ids: tf.Tensor, rows: tf.Tensor) -> check.Precondition:
    """Requires `rows` to have as many rows as there are ids."""
    message = "rows must have one row for each of the {} ids, got {}"
    return check.equal(message, check.size(ids), lambda: tf.shape(rows, out_type=tf.int64)[0])


def row_splits_from_indices(row_indices: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
    """The op Twml>RowSplitsFromIndices."""
    check.rank(row_indices, 1, "row_indices")
    return _row_splits(row_indices, num_rows, "row_indices")


def csr_from_indices(indices: tf.Tensor, num_rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>CsrFromIndices."""
    check.rank(indices, 2, "indices")

    def columns() -> tf.Tensor:
        return tf.shape(indices)[1]

    two_columns = check.Precondition(
        lambda: columns() == 2, "indices must have 2 columns, got {}", (columns,)
    )
    checked = check.require_well_formed(indices, two_columns)
    return checked[:, 1], _row_splits(checked[:, 0], num_rows, "indices", ", 0")


def _row_splits(
    row_indices: tf.Tensor, num_rows: tf.Tensor, name: str, column: str = ""
) -> tf.Tensor:
    check.rank(num_rows, 0, "num_rows")
    num_rows = check.require_well_formed(
        num_rows,
        check.Precondition(
            lambda: (num_rows >= 0) & (num_rows < 1 << 60),
            "num_rows must be in [0, 2^60), got {}",
            (lambda: num_rows,),
        ),
        check.ids_in_range(row_indices, num_rows, name, column),
        check.ordered(
            row_indices,
            lambda: row_indices[1:] < row_indices[:-1],
            f"{name} must be in row-major order",
            name,
            column,
        ),
    )
    return searchsorted(row_indices, tf.range(num_rows + 1), "left")
