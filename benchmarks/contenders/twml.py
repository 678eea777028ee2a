"""twml_ops: the op in a tf.function, fused and by slices, and the kernel on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import reference
from benchmarks.contender import EAGER, FORWARD, RULES, SLICES, TWML_OPS, Prepare, PreparedContender
from benchmarks.tf_support import CSR_SIGNATURE, csr_inputs, keras_table, sparse_inputs, traced
from benchmarks.workload import Case
from twml_ops import core, layers, ops, optimizers

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(reference.LEARNING_RATE),
    "adagrad": lambda: optimizers.Adagrad(
        reference.LEARNING_RATE, reference.INITIAL_ACCUMULATOR, reference.EPSILON
    ),
    "rowwise_adagrad": lambda: optimizers.RowWiseAdagrad(
        reference.LEARNING_RATE, reference.INITIAL_ACCUMULATOR, reference.EPSILON
    ),
    "lazy_adam": lambda: optimizers.LazyAdam(
        reference.LEARNING_RATE, reference.BETA_1, reference.BETA_2, reference.EPSILON
    ),
}


def forward_op(case: Case) -> PreparedContender:
    """`ops.sparse_linear` on a variable, in a tf.function."""
    _, table = keras_table(case.table)
    call = traced(*CSR_SIGNATURE)(lambda *csr: ops.sparse_linear(*csr, table))
    return _prepared(csr_inputs(case.batches), call)


def forward_eager(case: Case) -> PreparedContender:
    """The same op called eagerly; the difference is the cost of the call of a tf.function."""
    _, table = keras_table(case.table)
    return _prepared(csr_inputs(case.batches), lambda *csr: ops.sparse_linear(*csr, table))


def forward_sparse_tensor(case: Case) -> PreparedContender:
    """The layer with the SparseTensor input that stock TensorFlow uses."""
    rows, units = case.table.shape
    layer = layers.SparseLinear(units, rows, use_bias=False)
    layer.build((None, rows))
    layer.kernel.assign(tf.concat([case.table[:1], case.table[1:]], axis=0))
    call = traced(tf.SparseTensorSpec([None, rows], tf.float32))(lambda x: layer(x))
    return _prepared(sparse_inputs(case), call)


def forward_core(case: Case) -> PreparedContender:
    """The kernel on NumPy arrays with its own threads, without TensorFlow."""

    def run(i: int) -> np.ndarray:
        b = case.batches[i]
        return core.sparse_linear(
            b.ids, b.values, b.row_splits, case.table, num_threads=case.threads
        )

    return PreparedContender(run)


def fused_step(rule: str, case: Case) -> PreparedContender:
    """The step of model.fit: the Keras optimizer of twml_ops on the unmodified gradient."""
    variable, table = keras_table(case.table)
    step = fused_step_on(rule, variable, table)
    grad = tf.constant(case.grad_output)
    return _prepared(csr_inputs(case.batches), lambda *csr: step(*csr, grad), table.numpy)


def fused_step_on(rule: str, variable: Any, table: tf.Variable) -> Callable[..., tf.Tensor]:
    """The step as a function of (ids, values, row_splits, gradient of the output)."""
    optimizer = OPTIMIZERS[rule]()
    optimizer.build([variable])

    @traced(*CSR_SIGNATURE, tf.TensorSpec([None, None]))
    def step(*args: tf.Tensor) -> tf.Tensor:
        output, gradient = _backward(table, args[:-1], args[-1])
        optimizer.apply_gradients([(gradient, variable)])
        return output

    return step


def slices_step(rule: str, case: Case) -> PreparedContender:
    """The same step with a stored gradient, as after clipping or an all-reduce."""
    _, table = keras_table(case.table)
    slots = _slots(rule, case.table.shape)
    iteration = tf.Variable(0, dtype=tf.int64)

    @traced(*CSR_SIGNATURE, tf.TensorSpec([None, None]))
    def step(*args: tf.Tensor) -> tf.Tensor:
        output, gradient = _backward(table, args[:-1], args[-1])
        hyper = _hyper(rule, iteration.assign_add(1))
        ops.apply_rows(rule, table, slots, gradient, hyper, fuse=False)
        return output

    grad = tf.constant(case.grad_output)
    return _prepared(csr_inputs(case.batches), lambda *csr: step(*csr, grad), table.numpy)


def _backward(
    table: tf.Variable, csr: Sequence[tf.Tensor], grad: tf.Tensor
) -> tuple[tf.Tensor, tf.IndexedSlices]:
    with tf.GradientTape() as tape:
        output = ops.sparse_linear(*csr, table)
    return output, tape.gradient(output, table, output_gradients=grad)


def _slots(rule: str, shape: tuple[int, ...]) -> list[tf.Variable]:
    accumulator = reference.INITIAL_ACCUMULATOR
    if rule == "adagrad":
        return [tf.Variable(tf.fill(shape, accumulator))]
    if rule == "rowwise_adagrad":
        return [tf.Variable(tf.fill(shape[:1], accumulator))]
    return [tf.Variable(tf.zeros(shape)) for _ in range(2 if rule == "lazy_adam" else 0)]


def _hyper(rule: str, step: tf.Tensor) -> list[Any]:
    lr, b1, b2 = reference.LEARNING_RATE, reference.BETA_1, reference.BETA_2
    if rule == "sgd":
        return [lr, 0.0]
    if rule == "lazy_adam":
        return [ops.bias_corrected(lr, step, b1, b2), 0.0, b1, b2, reference.EPSILON]
    return [lr, 0.0, reference.EPSILON]


def _prepared(
    inputs: Sequence[Sequence[Any]],
    call: Callable[..., tf.Tensor],
    table: Callable[[], np.ndarray] | None = None,
) -> PreparedContender:
    return PreparedContender(lambda i: call(*inputs[i]), table)


CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {
        TWML_OPS: forward_op,
        EAGER: forward_eager,
        "twml_ops, from a SparseTensor": forward_sparse_tensor,
        "twml_ops.core (NumPy)": forward_core,
    },
    **{
        rule: {
            TWML_OPS: partial(fused_step, rule),
            SLICES: partial(slices_step, rule),
        }
        for rule in RULES
    },
}
