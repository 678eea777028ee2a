"""Row-sparse optimizer updates: only the given rows of a table and its slots are touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.ops import stock
from twml_ops.ops._library import library
from twml_ops.ops._tape import has_kernel_for, in_same_control_flow, tf_variable
from twml_ops.ops.sparse_linear import WEIGHTS_GRAD_OP


def apply_rows(
    rule: str,
    var: Any,
    slots: Sequence[Any],
    gradient: tf.IndexedSlices,
    hyper: Sequence[Any],
    *,
    fuse: bool = True,
    seed: Any = 0,
    hogwild: bool = False,
) -> Any:
    """One optimizer step on the rows a sparse gradient names, in place, at O(touched) cost.

    A gradient that comes untouched from `sparse_linear` in the graph being built is not computed
    at all: backward and update then run in one pass with bit for bit the same result.

    Args:
        rule: a name of cc/core/update_rules.h, which fixes `slots` and `hyper`.
        var: variable float32 or bfloat16 [N, D]. A bfloat16 row is updated in float32 and stored by
            stochastic rounding. One that is on a GPU is updated there, by stock TensorFlow ops.
        slots: float32 variables [N, D] ([N] for row-wise slots), as many as the rule keeps.
        gradient: ids [K] (repeated ids are summed first) and rows [K, D].
        hyper: float scalars: learning_rate, decay, then the rule's own.
        fuse: False always takes the gradient's rows as they are.
        seed: integer scalar that fixes the random bits of stochastic rounding; should differ from
            step to step.
        hogwild: lets concurrent steps update the table at once, without locks (Niu et al. 2011):
            fast, but the result depends on timing and updates may be lost.

    Returns:
        The update's operation (None in eager mode).

    Raises:
        tf.errors.InvalidArgumentError: an id out of range, or shapes that do not fit; nothing is
            changed then.
    """
    handle = tf_variable(var).handle
    slot_handles = [tf_variable(s).handle for s in slots]
    scalars = [tf.cast(h, tf.float32) for h in hyper]
    reached = has_kernel_for(var)
    product = sparse_linear_gradient_inputs(gradient) if fuse and reached else None
    if product is None:
        return (library if reached else stock.library).twml_apply_rows(
            handle,
            slot_handles,
            gradient.indices,
            gradient.values,
            scalars,
            tf.cast(seed, tf.int64),
            rule=rule,
            hogwild=hogwild,
        )
    with tf.control_dependencies(product.control_inputs):
        return library.twml_sparse_linear_backward_apply(
            handle,
            slot_handles,
            product.ids,
            product.values,
            product.row_splits,
            product.grad,
            scalars,
            tf.cast(seed, tf.int64),
            rule=rule,
            hogwild=hogwild,
            binary=product.binary,
        )


class GradientInputs(NamedTuple):
    """What a gradient that comes untouched from `sparse_linear` is computed from.

    Attributes:
        ids: integer [K].
        values: float32 [K], or [0] for a binary batch.
        row_splits: int64 [B + 1].
        grad: float32 [B, D], the gradient of the product.
        binary: whether the entries have no values.
        control_inputs: Operations that must run before the gradient is used, such as assertions.
    """

    ids: tf.Tensor
    values: tf.Tensor
    row_splits: tf.Tensor
    grad: tf.Tensor
    binary: bool
    control_inputs: tuple[tf.Operation, ...]


def sparse_linear_gradient_inputs(gradient: tf.IndexedSlices) -> GradientInputs | None:
    """What `gradient` is computed from if it is sparse_linear's own, in the current graph."""
    if tf.executing_eagerly():
        return None
    op, of_values = _producer(gradient.values)
    if op is None or op.type != WEIGHTS_GRAD_OP:
        return None
    same, of_indices = _producer(gradient.indices)
    if same is not op or op.graph is not tf.compat.v1.get_default_graph():
        return None
    if not in_same_control_flow(op):
        return None
    ids, values, row_splits, grad, _ = op.inputs
    control_inputs = _operations_to_wait_for([*of_values, *of_indices, *op.control_inputs])
    return GradientInputs(ids, values, row_splits, grad, op.get_attr("binary"), control_inputs)


def is_sparse_linear_gradient(gradient: tf.IndexedSlices) -> bool:
    """Whether `gradient` is known to come straight from sparse_linear: its ids are unique."""
    return sparse_linear_gradient_inputs(gradient) is not None


def _producer(tensor: tf.Tensor) -> tuple[Any, list[tf.Operation]]:
    """The op that made `tensor`, through Identity, and what the Identity ops wait for."""
    op = getattr(tensor, "op", None)
    waits: list[tf.Operation] = []
    while op is not None and op.type == "Identity":
        waits += op.control_inputs
        op = op.inputs[0].op
    return op, waits


def _operations_to_wait_for(operations: Iterable[tf.Operation]) -> tuple[tf.Operation, ...]:
    """Operations to wait for instead of the given ones, so that no gradient op is among them.

    A gradient op changes nothing, so waiting for it means waiting for what it waits for itself.
    As a control input of an update it would be computed for nothing, and stored: in a graph of
    version 1 `compute_gradients` makes the gradients of one op wait for each other.
    """
    found: dict[str, tf.Operation] = {}
    seen: set[str] = set()
    pending = list(operations)
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        source, waits = _producer(op.outputs[0]) if op.type == "Identity" else (op, [])
        if source.type == WEIGHTS_GRAD_OP:
            pending += [*waits, *source.control_inputs, *(i.op for i in source.inputs)]
        elif op.type == "NoOp":
            pending += op.control_inputs
        else:
            found[op.name] = op
    return tuple(found.values())


def _single(gradient: Any, ids: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.convert_to_tensor(gradient, tf.float32), tf.convert_to_tensor(ids))


def apply_sgd(var: Any, ids: Any, grads: Any, learning_rate: Any, decay: Any = 0.0) -> Any:
    """`w -= learning_rate * g` on rows `ids` of `var` [N, D]; see `apply_rows`."""
    return apply_rows("sgd", var, [], _single(grads, ids), [learning_rate, decay])


def apply_momentum(
    var: Any,
    momentum_slot: Any,
    ids: Any,
    grads: Any,
    learning_rate: Any,
    momentum: Any,
    nesterov: bool = False,
    decay: Any = 0.0,
) -> Any:
    """`m = momentum * m - learning_rate * g; w += m` (Nesterov: looks ahead by m)."""
    hyper = [learning_rate, decay, momentum, float(nesterov)]
    return apply_rows("momentum", var, [momentum_slot], _single(grads, ids), hyper)


def apply_adagrad(
    var: Any,
    accumulator: Any,
    ids: Any,
    grads: Any,
    learning_rate: Any,
    epsilon: Any = 1e-7,
    decay: Any = 0.0,
) -> Any:
    """Duchi et al. 2011: `a += g^2; w -= learning_rate * g / sqrt(a + epsilon)`."""
    hyper = [learning_rate, decay, epsilon]
    return apply_rows("adagrad", var, [accumulator], _single(grads, ids), hyper)


def apply_rowwise_adagrad(
    var: Any,
    accumulator: Any,
    ids: Any,
    grads: Any,
    learning_rate: Any,
    epsilon: Any = 1e-7,
    decay: Any = 0.0,
) -> Any:
    """Adagrad with one accumulator a row, `a += mean(g^2)`; `accumulator` is [N]."""
    hyper = [learning_rate, decay, epsilon]
    return apply_rows("rowwise_adagrad", var, [accumulator], _single(grads, ids), hyper)


def apply_lazy_adam(
    var: Any,
    m: Any,
    v: Any,
    ids: Any,
    grads: Any,
    learning_rate: Any,
    step: Any,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    decay: Any = 0.0,
) -> Any:
    """Kingma & Ba 2015 on the touched rows, bias-corrected by the global `step` (from 1)."""
    hyper = [bias_corrected(learning_rate, step, beta_1, beta_2), decay, beta_1, beta_2, epsilon]
    return apply_rows("lazy_adam", var, [m, v], _single(grads, ids), hyper)


def apply_ftrl(
    var: Any,
    accumulator: Any,
    linear: Any,
    ids: Any,
    grads: Any,
    learning_rate: Any,
    learning_rate_power: float = -0.5,
    l1: float = 0.0,
    l2: float = 0.0,
    l2_shrinkage: float = 0.0,
    decay: Any = 0.0,
) -> Any:
    """FTRL-proximal, McMahan et al. 2013, in Keras' form."""
    hyper = [learning_rate, decay, learning_rate_power, l1, l2, l2_shrinkage]
    return apply_rows("ftrl", var, [accumulator, linear], _single(grads, ids), hyper)


def bias_corrected(learning_rate: Any, step: Any, beta_1: Any, beta_2: Any) -> tf.Tensor:
    """Adam's step size `lr * sqrt(1 - beta_2^t) / (1 - beta_1^t)`, float32 scalar."""
    t = tf.cast(step, tf.float32)
    b1, b2 = tf.cast(beta_1, tf.float32), tf.cast(beta_2, tf.float32)
    return tf.cast(learning_rate, tf.float32) * tf.sqrt(1 - tf.pow(b2, t)) / (1 - tf.pow(b1, t))
