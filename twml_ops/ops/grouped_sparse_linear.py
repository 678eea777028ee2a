"""`grouped_sparse_linear`: many sparse-linear products in one op call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import stateless_value
from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._gradients import needs_gradient, register_gradient
from twml_ops.ops._library import library
from twml_ops.ops._tape import table_handle
from twml_ops.ops.sparse_linear import resource_values_grad, sparse_linear, weights_grad


def grouped_sparse_linear(
    batches: Sequence[tuple[Any, Any, Any]], weights: Sequence[Any]
) -> list[tf.Tensor]:
    """`sparse_linear` of many batches, each on its own table, for the overhead of one call.

    Small products run side by side, a thread each; large ones one after the other, each on all
    threads. The results are those of `sparse_linear`, bit for bit, and so are the gradients: those
    by values read the tables again when they are computed.

    Args:
        batches: (ids, values, row_splits) as `sparse_linear` takes them, ids all int32 or all
            int64 (or else all are cast to int64).
        weights: variables float32 or bfloat16 [N, D], as many as batches; one may occur twice.

    Returns:
        float32 [B, D] of each batch.

    Raises:
        ValueError: not one table a batch, or none at all.
        tf.errors.InvalidArgumentError: as by `sparse_linear`; the message names the table.
    """
    if len(batches) != len(weights) or not batches:
        raise ValueError(
            f"weights must be one table a batch, got {len(weights)} for {len(batches)} batches"
        )
    if any(stateless_value(w) is not None for w in weights):  # tensors, which the op does not take
        return [sparse_linear(*b, w) for b, w in zip(batches, weights, strict=True)]
    ids, values, row_splits, binary = map(
        list, zip(*(csr_inputs(*b) for b in batches), strict=True)
    )
    if len({i.dtype for i in ids}) > 1:
        ids = [tf.cast(i, tf.int64) for i in ids]
    outputs: list[tf.Tensor] = library.twml_grouped_sparse_linear(
        ids, values, row_splits, [table_handle(w) for w in weights], binary=binary
    )
    return outputs


@register_gradient("Twml>GroupedSparseLinear")
def _grouped_sparse_linear_grad(op: Any, *grads: Any) -> list[Any]:
    n = len(grads)
    inputs = list(op.inputs)
    values_grads: list[Any] = [None] * n
    table_grads: list[Any] = [None] * n
    for i, (grad, binary) in enumerate(zip(grads, op.get_attr("binary"), strict=True)):
        if grad is None:
            continue
        ids, values, row_splits, handle = inputs[i::n]
        if not binary and needs_gradient(op, n + i):
            values_grads[i] = resource_values_grad(op.outputs[i], ids, row_splits, handle, grad)
        shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
        table_grads[i] = weights_grad(ids, values, row_splits, grad, shape, binary)
    return [None] * n + values_grads + [None] * n + table_grads
