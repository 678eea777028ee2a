"""`grouped_sparse_linear`: many sparse-linear products in one op call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import stateless_value
from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._gradients import needs_gradient, register_gradient
from twml_ops.ops._library import library
from twml_ops.ops._tape import device_of, table_handle, tf_variable
from twml_ops.ops.sparse_linear import resource_values_grad, sparse_linear, weights_grad


def grouped_sparse_linear(
    batches: Sequence[tuple[Any, Any, Any]], weights: Sequence[Any]
) -> list[tf.Tensor]:
    """Computes `sparse_linear` of several batches, each with its own table, in one op call.

    Small products run in parallel, one thread each; large ones run one after another, each on all
    threads. Results and gradients are bit for bit the same as with `sparse_linear`. Gradients by
    values read the tables again when they are computed.

    Args:
        batches: Tuples (ids, values, row_splits) as `sparse_linear` takes them. If ids are neither
            all int32 nor all int64, they are cast to int64.
        weights: Variables float32 or bfloat16 [N, D], one for each batch. A variable may occur more
            than once.

    Returns:
        The products, float32 [B, D] for each batch.

    Raises:
        ValueError: The numbers of batches and tables differ, or there are none.
        tf.errors.InvalidArgumentError: As from `sparse_linear`; the message names the table.
    """
    if len(batches) != len(weights) or not batches:
        raise ValueError(
            f"weights must have one table for each batch, got {len(weights)} for "
            f"{len(batches)} batches"
        )
    if any(stateless_value(w) is not None for w in weights):  # tensors: the op takes handles
        return [sparse_linear(*b, w) for b, w in zip(batches, weights, strict=True)]
    devices = {device_of(tf_variable(w)) for w in weights}
    if len(devices) > 1 and any(library.is_on_gpu(d) for d in devices):
        return [sparse_linear(*b, w) for b, w in zip(batches, weights, strict=True)]
    ids, values, row_splits, binary = map(
        list, zip(*(csr_inputs(*b) for b in batches), strict=True)
    )
    if len({i.dtype for i in ids}) > 1:
        ids = [tf.cast(i, tf.int64) for i in ids]
    handles = [table_handle(w, as_table=True) for w in weights]
    with library.beside(devices.pop()):
        outputs: list[tf.Tensor] = library.twml_grouped_sparse_linear(
            ids, values, row_splits, handles, binary=binary
        )
    return outputs


@register_gradient("Twml>GroupedSparseLinear")
def _grouped_sparse_linear_grad(op: Any, *grads: Any) -> list[Any]:
    with library.beside(device_of(op.outputs[0])):
        return _grads(op, grads, list(op.inputs))


def _grads(op: Any, grads: Sequence[Any], inputs: list[Any]) -> list[Any]:
    n = len(grads)
    values_grads: list[Any] = [None] * n
    table_grads: list[Any] = [None] * n
    for i, (grad, binary) in enumerate(zip(grads, op.get_attr("binary"), strict=True)):
        if grad is None:
            continue
        ids, values, row_splits, handle = inputs[i::n]
        if not binary and needs_gradient(op, n + i):
            values_grads[i] = resource_values_grad(op.outputs[i], ids, row_splits, handle, grad)
        shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
        table_grads[i] = weights_grad(ids, values, row_splits, grad, shape, binary, handle)
    return [None] * n + values_grads + [None] * n + table_grads
