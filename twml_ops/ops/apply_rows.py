"""Row-sparse optimizer updates: they read and write only the rows that have a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.ops import stock
from twml_ops.ops._library import library
from twml_ops.ops._shared_groups import group_batch, new_group_batch
from twml_ops.ops._tape import device_of, has_kernel_for, in_same_control_flow, tf_variable
from twml_ops.ops.changed_rows import writes_unmarked
from twml_ops.ops.sparse_linear import WEIGHTS_GRAD_OP
from twml_ops.ops.tiered_rows import rows_in_file


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
    """Applies one optimizer step to the rows of a sparse gradient, in place.

    The cost is O(touched rows), not O(N). If the gradient is the unmodified gradient of
    `sparse_linear` and is computed in the graph that is being built, backward pass and update run
    as one fused op. The result is bit for bit the same, and the gradient is never stored.

    The rules, with the gradient g of a row w; "Slots" are variables and "hyper" are scalars after
    learning_rate and decay, both in this order. Sources: `twml_ops.optimizers`, whose class of a
    rule has the same form.

        rule               slots           hyper
        sgd                -               -
            w -= learning_rate * g
        momentum           m               momentum, nesterov (0 or 1)
            m = momentum * m - learning_rate * g; w += m
            with nesterov: w += momentum * m - learning_rate * g
        adagrad            a               epsilon
            a += g^2; w -= learning_rate * g / sqrt(a + epsilon)
        rowwise_adagrad    a [N]           epsilon
            a += mean(g^2) over the row; w as of adagrad
        lazy_adam          m, v            beta_1, beta_2, epsilon
            m += (1 - beta_1) * (g - m); v += (1 - beta_2) * (g^2 - v)
            w -= learning_rate * m / (sqrt(v) + epsilon); see `bias_corrected`
        ftrl               a, z            learning_rate_power, l1, l2, l2_shrinkage
            a' = a + g^2, with p = -learning_rate_power
            z += g + 2 * l2_shrinkage * w - (a'^p - a^p) / learning_rate * w
            w = (clip(z, -l1, l1) - z) / (a'^p / learning_rate + 2 * l2)

    Args:
        rule: "sgd", "momentum", "adagrad", "rowwise_adagrad", "lazy_adam" or "ftrl".
        var: Variable float32 or bfloat16 [N, D]. bfloat16 rows are updated in float32 and stored
            with stochastic rounding. A variable on a GPU is updated there, by stock TensorFlow ops
            if there are no CUDA kernels.
        slots: Variables float32 [N, D], or [N] for row-wise slots, as many as the rule has.
        gradient: Ids [K] and rows [K, D]. Rows of repeated ids are summed first.
        hyper: Float scalars: learning_rate, decay, then the hyperparameters of the rule. `decay` is
            the share by which the touched rows shrink before the update.
        fuse: Whether the fused op may be used. False always uses the rows of `gradient`.
        seed: Integer scalar that determines the random bits of stochastic rounding. Pass another
            value at every step.
        hogwild: Whether concurrent steps may update the table without locks (Niu et al. 2011,
            "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent"). The
            result then depends on timing, and single updates may be lost.

    Returns:
        The operation that updates, or None in eager mode.

    Raises:
        tf.errors.InvalidArgumentError: An id is out of range, or shapes do not match. Nothing is
            updated then.
    """
    handle = tf_variable(var).handle
    slot_handles = [tf_variable(s).handle for s in slots]
    scalars = [tf.cast(h, tf.float32) for h in hyper]
    stored = tf_variable(var).dtype.base_dtype
    in_library = has_kernel_for(var, as_table=stored in (tf.float32, tf.bfloat16))
    product = sparse_linear_gradient_inputs(gradient) if fuse and in_library else None
    if not in_library or not library.marks_rows or library.is_on_gpu(device_of(var)):
        writes_unmarked([var, *slots])
    if product is None:
        with library.beside(device_of(var)):
            return (library if in_library else stock.library).twml_apply_rows(
                handle,
                slot_handles,
                gradient.indices,
                gradient.values,
                scalars,
                tf.cast(seed, tf.int64),
                rule=rule,
                hogwild=hogwild,
            )
    with library.beside(device_of(var)):
        groups = groups_of(product, var)
    with library.beside(device_of(var)), tf.control_dependencies(product.control_inputs):
        return library.twml_sparse_linear_backward_apply(
            handle,
            slot_handles,
            groups,
            product.grad,
            scalars,
            tf.cast(seed, tf.int64),
            rule=rule,
            hogwild=hogwild,
        )


class GradientInputs(NamedTuple):
    """The inputs from which an unmodified gradient of `sparse_linear` is computed.

    Attributes:
        ids: Integer [K].
        values: float32 [K], or [0] for a binary batch.
        row_splits: int64 [B + 1].
        grad: float32 [B, D], the gradient of the product.
        binary: Whether the entries have no values.
        control_inputs: Operations that must run before the gradient is used, such as assertions.
    """

    ids: tf.Tensor
    values: tf.Tensor
    row_splits: tf.Tensor
    grad: tf.Tensor
    binary: bool
    control_inputs: tuple[tf.Operation, ...]


def sparse_linear_gradient_inputs(gradient: tf.IndexedSlices) -> GradientInputs | None:
    """Finds the inputs of an unmodified gradient of `sparse_linear`.

    Args:
        gradient: Gradient by a table, as a tape or an optimizer provides it.

    Returns:
        The inputs, or None if `gradient` has been modified (clipped, scaled, added up), is computed
        in another graph or another branch, or in eager mode.
    """
    if tf.executing_eagerly():
        return None
    op, of_values = _producer(gradient.values)
    if op is None or op.type != WEIGHTS_GRAD_OP:
        return None
    indices_op, of_indices = _producer(gradient.indices)
    if indices_op is not op or op.graph is not tf.compat.v1.get_default_graph():
        return None
    if not in_same_control_flow(op):
        return None
    ids, values, row_splits, grad = op.inputs[:4]
    control_inputs = _operations_to_wait_for([*of_values, *of_indices, *op.control_inputs])
    return GradientInputs(ids, values, row_splits, grad, op.get_attr("binary"), control_inputs)


def groups_of(product: GradientInputs, table: Any) -> tf.Tensor:
    """The entries of a batch grouped by id, which all updates from this batch share if they can.

    Args:
        product: Of the gradient by the table.
        table: Any variable with a row for each id, or the cache of such a table.

    Returns:
        Variant scalar, the output of Twml>GroupBatch.
    """
    batch = (product.ids, product.values, product.row_splits, product.binary)
    num_rows = rows_in_file(table)
    if num_rows is None and library.runs_on_gpu:
        num_rows = tf_variable(table).shape[0]
    rows = (tf_variable(table).handle, num_rows)
    shared = group_batch(*batch, *rows)
    return shared[0] if shared else new_group_batch(*batch, *rows)


def is_sparse_linear_gradient(gradient: tf.IndexedSlices) -> bool:
    """Whether a gradient is known to be the unmodified gradient of `sparse_linear`.

    Args:
        gradient: Gradient by a table.

    Returns:
        True if so; the ids of `gradient` are then unique and ascending.
    """
    return sparse_linear_gradient_inputs(gradient) is not None


def _producer(tensor: tf.Tensor) -> tuple[Any, list[tf.Operation]]:
    """The op that computes `tensor`, seen through Identity ops, and their control inputs."""
    op = getattr(tensor, "op", None)
    waits: list[tf.Operation] = []
    while op is not None and op.type == "Identity":
        waits += op.control_inputs
        op = op.inputs[0].op
    return op, waits


def _operations_to_wait_for(operations: Iterable[tf.Operation]) -> tuple[tf.Operation, ...]:
    """Replaces gradient ops among control inputs by what they wait for themselves.

    A gradient op has no side effects, so waiting for its inputs is equivalent. As a control input
    of the fused update it could not be pruned and would be computed for nothing: in a graph of
    version 1, `compute_gradients` makes the gradients of one op wait for each other.
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


def bias_corrected(learning_rate: Any, step: Any, beta_1: Any, beta_2: Any) -> tf.Tensor:
    """Adam's bias-corrected learning rate, `lr * sqrt(1 - beta_2^t) / (1 - beta_1^t)`.

    Args:
        learning_rate: Float scalar.
        step: Integer scalar, the step t, from 1.
        beta_1: Decay rate of the first moment.
        beta_2: Decay rate of the second moment.

    Returns:
        float32 scalar.
    """
    t = tf.cast(step, tf.float32)
    b1, b2 = tf.cast(beta_1, tf.float32), tf.cast(beta_2, tf.float32)
    return tf.cast(learning_rate, tf.float32) * tf.sqrt(1 - tf.pow(b2, t)) / (1 - tf.pow(b1, t))
