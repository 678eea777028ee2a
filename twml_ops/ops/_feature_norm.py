"""What `max_norm` and `online_standardize` share: the call of the op and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops._keras import in_stateless_scope, stateless_value
from twml_ops.ops._gradients import register_gradient
from twml_ops.ops._library import library
from twml_ops.ops._shared_groups import group_ids, share_groups_of
from twml_ops.ops._tape import device_of, table_handle
from twml_ops.ops._temporary_variable import TemporaryVariable
from twml_ops.ops.changed_rows import writes_unmarked


def normalize(
    op: Callable[..., Any],
    ids: Any,
    values: Any,
    state: Any,
    bias: Any,
    training: Any,
    *,
    groups_in_training: bool,
    on_gpu: bool = False,
    **attributes: Any,
) -> tf.Tensor:
    """Calls a normalization op, also within a `StatelessScope` of Keras 3.

    Args:
        op: The wrapper of the op.
        ids: Integer [K].
        values: Float [K].
        state: Variable of the op's state, one row for each feature.
        bias: Variable float32 [N], or None.
        training: Bool scalar: whether the op updates `state`.
        groups_in_training: Whether the update of `state` needs the entries of each feature
            together.
        on_gpu: Whether the op has kernels for GPUs too. It runs where `state` is.
        **attributes: Attributes of the op.

    Returns:
        The normalized values, float32 [K].
    """
    ids = tf.convert_to_tensor(ids, dtype_hint=tf.int64)
    values = tf.convert_to_tensor(values, tf.float32)
    training = tf.convert_to_tensor(training, tf.bool)
    given_bias = None if bias is None else stateless_value(bias)
    handles = []
    if bias is not None and given_bias is None:
        handles = [table_handle(bias, as_table=on_gpu)]
    # A stateless scope records assignments to Keras variables; an update in place would bypass it.
    # The variable of a layer that is built within the scope has no variable of TensorFlow yet.
    stateless = in_stateless_scope() and not isinstance(state, tf.Variable)
    device = device_of(state) if on_gpu else None
    temporary = (
        TemporaryVariable(tf.stop_gradient(tf.convert_to_tensor(state)), device)
        if stateless
        else None
    )
    handle = table_handle(state, as_table=on_gpu) if temporary is None else temporary.handle
    if not library.marks_rows or library.is_on_gpu(device):
        writes_unmarked([state])
    groups_now = groups_in_training and bool(tf.get_static_value(training))
    with library.beside(device):
        if (bias is not None or groups_now) and not library.runs_on_gpu:
            share_groups_of(ids)
        groups = group_ids(ids, handle) if groups_now else []
        output, _ = op(ids, values, handle, handles, training, groups, **attributes)
    if temporary is not None and tf.get_static_value(training) is not False:
        state.assign(temporary.read())
    if given_bias is not None:
        present = ids >= 0  # negative ids are padding of static shapes, or an error above
        output += tf.where(present, tf.gather(given_bias, tf.maximum(ids, 0)), 0.0)
    return output


@register_gradient("Twml>MaxNorm", "Twml>OnlineStandardize")
def _gradient(op: Any, grad: Any, _: Any) -> list[Any]:
    """The gradient of both ops, for which the state is a constant.

    The op's second output is the derivative by the values. It is piecewise constant, so it has no
    gradient of its own.
    """
    if grad is None:
        return [None] * len(op.inputs)
    ids, state, scale = op.inputs[0], op.inputs[2], op.outputs[1]
    num_bias = op.get_attr("num_bias")
    bias_grads = []
    with library.beside(device_of(op.outputs[0])), library.scope():
        for handle in op.inputs[3 : 3 + num_bias]:  # the bias, if there is one
            rows, groups = tf.reshape(grad, [-1, 1]), group_ids(ids, state)
            unique_ids, summed = library.twml_sum_duplicates(ids, rows, groups)
            shape = tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)
            bias_grads.append(tf.IndexedSlices(tf.reshape(summed, [-1]), unique_ids, shape))
        others = [None] * (len(op.inputs) - 3 - num_bias)
        return [None, grad * scale, None, *bias_grads, *others]
