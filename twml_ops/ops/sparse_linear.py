"""`sparse_linear` and its gradients, CSR offsets, and sums of duplicate rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import stateless_value
from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._gradients import needs_gradient, register_gradient
from twml_ops.ops._library import library
from twml_ops.ops._shared_groups import group_batch
from twml_ops.ops._tape import (
    check_not_written_since,
    device_of,
    table_handle,
    tf_variable,
)
from twml_ops.ops.stock.bfloat16 import cast_to_float32
from twml_ops.ops.stock.sparse_linear import searchsorted

WEIGHTS_GRAD_OP = "Twml>SparseLinearWeightsGrad"


def sparse_linear(
    ids: Any, values: Any, row_splits: Any, weights: Any, bias: Any = None
) -> tf.Tensor:
    """The product of a sparse batch [B, N] and dense weights [N, D], plus bias.

    `y[b] = sum over k in [row_splits[b], row_splits[b + 1]) of values[k] * weights[ids[k]]`. Each
    row is summed in the order of its entries, so the result is the same for any number of threads.
    Rows may be empty, and ids may be repeated and unsorted.

    Gradients of any order, in reverse mode, are the gradients of the dense product. The gradient by
    `values` of a variable, and second derivatives, read the variable when they are computed, not as
    it was in the forward pass. Compute them before the variable is updated, also with a persistent
    tape. Within one `tf.function` an update in between is an error; in eager mode, and across
    functions, it cannot be detected, and the gradient is that of the updated table.

    Args:
        ids: int32 or int64 [K], each in [0, N).
        values: float32 [K], or None for a binary batch (all 1).
        row_splits: int64 [B + 1], CSR offsets.
        weights: float32 [N, D]. A variable of TensorFlow or Keras may also be bfloat16; it is read
            in place without a copy, and its gradient is `tf.IndexedSlices` with unique ascending
            ids and float32 rows.
        bias: None, or float32 [D].

    Returns:
        float32 [B, D].

    Raises:
        tf.errors.InvalidArgumentError: An id is out of range, or `row_splits` is invalid. The
            message names the position.
        ValueError: In a `tf.function`, the gradient by `values` is computed after an update of the
            variable.
        NotImplementedError: The gradient is computed in forward mode
            (`tf.autodiff.ForwardAccumulator`).
    """
    ids, values, row_splits, binary = csr_inputs(ids, values, row_splits)
    # TensorFlow also accepts a Keras 3 variable as a tensor, but that would copy the table.
    in_scope = stateless_value(weights)
    if in_scope is None:
        table = tf_variable(weights)
    else:
        table = in_scope if in_scope.dtype == tf.float32 else cast_to_float32(in_scope)
    if isinstance(table, tf.Variable):
        handle = table_handle(table, as_table=True)
        with library.beside(device_of(table)):
            out = library.twml_resource_sparse_linear(
                ids, values, row_splits, handle, binary=binary
            )
    else:
        table = tf.convert_to_tensor(table, tf.float32)
        out = library.twml_sparse_linear(ids, values, row_splits, table, binary=binary)
    return out if bias is None else tf.nn.bias_add(out, tf.convert_to_tensor(bias))


def row_splits_from_indices(row_indices: Any, num_rows: Any) -> tf.Tensor:
    """Converts the row indices of COO entries to CSR offsets.

    Args:
        row_indices: int64 [K], the row of each entry, non-decreasing.
        num_rows: int64 scalar, B.

    Returns:
        int64 [B + 1].

    Raises:
        tf.errors.InvalidArgumentError: An index is out of [0, B), or less than its predecessor.
    """
    row_indices = tf.convert_to_tensor(row_indices, tf.int64)
    return library.twml_row_splits_from_indices(row_indices, tf.cast(num_rows, tf.int64))


def csr_from_indices(indices: Any, num_rows: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The ids and CSR offsets of a `tf.SparseTensor` whose columns are ids.

    Args:
        indices: int64 [K, 2], the row and the id of each entry, with non-decreasing rows.
        num_rows: int64 scalar, B.

    Returns:
        `(ids [K], row_splits [B + 1])`, int64. Ids are not checked.

    Raises:
        tf.errors.InvalidArgumentError: A row is out of [0, B), or less than its predecessor.
    """
    indices = tf.convert_to_tensor(indices, tf.int64)
    ids, row_splits = library.twml_csr_from_indices(indices, tf.cast(num_rows, tf.int64))
    return ids, row_splits


def sum_duplicates(ids: Any, rows: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the rows of equal ids, in the order given, so that float sums are reproducible.

    Args:
        ids: int32 or int64 [K], not negative.
        rows: float32 [K, D].

    Returns:
        `(unique_ids [U], summed [U, D])`, ids ascending.

    Raises:
        tf.errors.InvalidArgumentError: An id is negative, or the numbers of ids and rows differ.
    """
    ids = tf.convert_to_tensor(ids, dtype_hint=tf.int64)
    rows = tf.convert_to_tensor(rows, tf.float32)
    unique_ids, summed = library.twml_sum_duplicates(ids, rows, [])
    return unique_ids, summed


def weights_grad(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    grad: tf.Tensor,
    shape: tf.Tensor,
    binary: bool,
    table: tf.Tensor | None = None,
    num_rows: int | None = None,
) -> tf.IndexedSlices:
    """The gradient of `sparse_linear` by its weights.

    Args:
        ids: int32 or int64 [K].
        values: float32 [K], or [0] for a binary batch.
        row_splits: int64 [B + 1], CSR offsets.
        grad: float32 [B, D], the gradient of the product.
        shape: int64 [2], shape [N, D] of the weights.
        binary: Whether the batch is binary.
        table: Handle of the weights, if they are a variable. In a graph, the gradients and updates
            of all tables with the same batch then share one grouping of its entries.
        num_rows: N, if the variable is the cache of a table [N, D] whose rows are in a file.

    Returns:
        Unique ascending ids and their summed rows.
    """
    groups = []
    if table is not None:
        groups = group_batch(ids, values, row_splits, binary, table, num_rows)
    with library.on_host():
        input_dim = shape[0]
    unique_ids, rows = library.twml_sparse_linear_weights_grad(
        ids, values, row_splits, grad, input_dim, groups, binary=binary
    )
    return tf.IndexedSlices(rows, unique_ids, shape)


@register_gradient("Twml>SparseLinear")
def _sparse_linear_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, values, row_splits, weights = op.inputs
    binary = op.get_attr("binary")
    by_values = None
    # It reads every row that the batch names, so it is computed only where it is used.
    if not binary and needs_gradient(op, 1):
        by_values = library.twml_sparse_linear_values_grad(ids, row_splits, weights, grad)
    shape = tf.shape(weights, out_type=tf.int64)
    return [None, by_values, None, weights_grad(ids, values, row_splits, grad, shape, binary)]


@register_gradient("Twml>ResourceSparseLinear")
def _resource_sparse_linear_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, values, row_splits, handle = op.inputs
    binary = op.get_attr("binary")
    by_values = None
    shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
    with library.beside(device_of(op.outputs[0])):
        if not binary and needs_gradient(op, 1):
            by_values = resource_values_grad(op.outputs[0], ids, row_splits, handle, grad)
        by_weights = weights_grad(ids, values, row_splits, grad, shape, binary, handle)
    return [None, by_values, None, by_weights]


def resource_values_grad(
    output: tf.Tensor, ids: tf.Tensor, row_splits: tf.Tensor, handle: tf.Tensor, grad: tf.Tensor
) -> tf.Tensor:
    """The gradient of a product `output` by its values; it reads the variable again."""
    check_not_written_since(output, handle)
    return library.twml_resource_sparse_linear_values_grad(ids, row_splits, handle, grad)


# The product is linear in the values and in the table, so its second derivatives, and all higher
# ones, are products of the same kind.


@register_gradient("Twml>SparseLinearValuesGrad")
def _values_grad_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, row_splits, weights, of_output = op.inputs
    shape = tf.shape(weights, out_type=tf.int64)
    by_weights = by_gradient = None
    if needs_gradient(op, 2):
        by_weights = weights_grad(ids, grad, row_splits, of_output, shape, False)
    if needs_gradient(op, 3):
        by_gradient = library.twml_sparse_linear(ids, grad, row_splits, weights)
    return [None, None, by_weights, by_gradient]


@register_gradient("Twml>ResourceSparseLinearValuesGrad")
def _resource_values_grad_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, row_splits, handle, of_output = op.inputs
    shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
    by_weights = by_gradient = None
    with library.beside(device_of(op.outputs[0])):
        if needs_gradient(op, 2):
            by_weights = weights_grad(ids, grad, row_splits, of_output, shape, False, handle)
        if needs_gradient(op, 3):
            by_gradient = library.twml_resource_sparse_linear(ids, grad, row_splits, handle)
    return [None, None, by_weights, by_gradient]


@register_gradient("Twml>SparseLinearWeightsGrad")
def _weights_grad_grad(op: Any, _: Any, grad: Any) -> list[Any]:
    """The gradient of the summed rows [U, D], which take the place of the table.

    The positions of the ids among the unique ids take the place of the ids.
    """
    if grad is None:
        return [None] * len(op.inputs)
    ids, values, row_splits, of_output = op.inputs[:4]
    binary = op.get_attr("binary")
    positions = searchsorted(op.outputs[0], ids, "left")
    by_values = None
    if not binary and needs_gradient(op, 1):
        by_values = library.twml_sparse_linear_values_grad(positions, row_splits, grad, of_output)
    by_gradient = library.twml_sparse_linear(positions, values, row_splits, grad, binary=binary)
    return [None, by_values, None, by_gradient, *[None] * (len(op.inputs) - 4)]


@register_gradient("Twml>SumDuplicates")
def _sum_duplicates_grad(op: Any, _: Any, grad: Any) -> list[Any]:
    if grad is None:
        return [None] * len(op.inputs)
    positions = searchsorted(op.outputs[0], op.inputs[0], "left")
    return [None, tf.gather(grad, positions), *[None] * (len(op.inputs) - 2)]


for _name in ("RowSplitsFromIndices", "CsrFromIndices", "GroupIds", "GroupBatch"):
    tf.no_gradient(f"Twml>{_name}")
