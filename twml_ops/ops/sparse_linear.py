"""`sparse_linear` and its gradient; CSR offsets; sums of duplicate rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._entries import entries
from twml_ops.ops._library import library
from twml_ops.ops._tape import table_handle, tf_variable

WEIGHTS_GRAD_OP = "Twml>SparseLinearWeightsGrad"


def sparse_linear(
    ids: Any, values: Any, row_splits: Any, weights: Any, bias: Any = None
) -> tf.Tensor:
    """The product of a sparse batch [B, N] and dense weights [N, D], plus bias.

    `y[b] = sum over k in [row_splits[b], row_splits[b + 1]) of values[k] * weights[ids[k]]`,
    each row summed in the order of its entries, the same for any number of threads. Rows may be
    empty, ids repeated and unsorted.

    Args:
        ids: int32 or int64 [K], each in [0, N).
        values: float32 [K], or None for a binary batch (all 1).
        row_splits: int64 [B + 1], CSR offsets.
        weights: float32 [N, D]. A variable (of TensorFlow or Keras) may also be bfloat16; it is
            read in place, never copied, and its gradient is a tf.IndexedSlices with unique
            ascending ids and float32 rows.
        bias: None, or float32 [D].

    Returns:
        float32 [B, D].

    Raises:
        tf.errors.InvalidArgumentError: an id out of range or row_splits that are not offsets; the
            message names the place.
    """
    ids, values, row_splits, binary = entries(ids, values, row_splits)
    # A variable of Keras 3 is a tensor too, as TensorFlow sees it, but must not be read as one.
    table = tf_variable(weights)
    if isinstance(table, tf.Variable):
        handle = table_handle(table)
        out = library.twml_resource_sparse_linear(ids, values, row_splits, handle, binary=binary)
    else:
        table = tf.convert_to_tensor(table, tf.float32)
        out = library.twml_sparse_linear(ids, values, row_splits, table, binary=binary)
    return out if bias is None else tf.nn.bias_add(out, tf.convert_to_tensor(bias))


def row_splits_from_indices(row_indices: Any, num_rows: Any) -> tf.Tensor:
    """CSR offsets of row-major COO entries.

    Args:
        row_indices: int64 [K], the row of each entry; must not fall.
        num_rows: int64 scalar, B.

    Returns:
        int64 [B + 1].

    Raises:
        tf.errors.InvalidArgumentError: an index out of [0, B), or one lower than its predecessor.
    """
    row_indices = tf.convert_to_tensor(row_indices, tf.int64)
    return library.twml_row_splits_from_indices(row_indices, tf.cast(num_rows, tf.int64))


def csr_from_indices(indices: Any, num_rows: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The ids and CSR offsets of a `tf.SparseTensor` whose columns are ids.

    Args:
        indices: int64 [K, 2], the row and the id of each entry; rows must not fall.
        num_rows: int64 scalar, B.

    Returns:
        `(ids [K], row_splits [B + 1])`, int64. Ids are not checked.

    Raises:
        tf.errors.InvalidArgumentError: a row out of [0, B), or one lower than its predecessor.
    """
    indices = tf.convert_to_tensor(indices, tf.int64)
    ids, row_splits = library.twml_csr_from_indices(indices, tf.cast(num_rows, tf.int64))
    return ids, row_splits


def sum_duplicates(ids: Any, rows: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the rows of equal ids, in the order given, so float sums are reproducible.

    Args:
        ids: int32 or int64 [K], not negative.
        rows: float32 [K, D].

    Returns:
        `(unique_ids [U], summed [U, D])`, ids ascending.

    Raises:
        tf.errors.InvalidArgumentError: a negative id, or not one row an id.
    """
    ids = tf.convert_to_tensor(ids, dtype_hint=tf.int64)
    unique_ids, summed = library.twml_sum_duplicates(ids, tf.convert_to_tensor(rows, tf.float32))
    return unique_ids, summed


def _needs_values_grad(op: Any) -> bool:
    """Whether the tape wants d(loss)/d(values): a read of every touched row, so not done idly."""
    if op.get_attr("binary"):
        return False
    skipped = getattr(op, "skip_input_indices", None)
    return skipped is None or 1 not in skipped


def weights_grad(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    grad: tf.Tensor,
    shape: tf.Tensor,
    binary: bool,
) -> tf.IndexedSlices:
    """The gradient by a table of the given shape: unique ascending ids and their summed rows."""
    unique_ids, rows = library.twml_sparse_linear_weights_grad(
        ids, values, row_splits, grad, shape[0], binary=binary
    )
    return tf.IndexedSlices(rows, unique_ids, shape)


def _weights_grad(op: Any, grad: tf.Tensor, shape: tf.Tensor) -> tf.IndexedSlices:
    ids, values, row_splits, _ = op.inputs
    return weights_grad(ids, values, row_splits, grad, shape, op.get_attr("binary"))


@tf.RegisterGradient("Twml>SparseLinear")
def _sparse_linear_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, _, row_splits, weights = op.inputs
    values_grad = None
    if _needs_values_grad(op):
        values_grad = library.twml_sparse_linear_values_grad(ids, row_splits, weights, grad)
    shape = tf.shape(weights, out_type=tf.int64)
    return [None, values_grad, None, _weights_grad(op, grad, shape)]


@tf.RegisterGradient("Twml>ResourceSparseLinear")
def _resource_sparse_linear_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, _, row_splits, handle = op.inputs
    values_grad = None
    if _needs_values_grad(op):
        values_grad = library.twml_resource_sparse_linear_values_grad(ids, row_splits, handle, grad)
    shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
    return [None, values_grad, None, _weights_grad(op, grad, shape)]


for _name in (
    "SparseLinearValuesGrad",
    "ResourceSparseLinearValuesGrad",
    "SparseLinearWeightsGrad",
):
    tf.no_gradient(f"Twml>{_name}")
