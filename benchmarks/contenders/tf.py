"""Stock TensorFlow: two ways to multiply a sparse batch, with updates by Keras or by raw ops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from benchmarks import reference
from benchmarks.contender import FORWARD, Prepare, PreparedContender
from benchmarks.tf_support import keras_table, sparse_inputs, traced
from benchmarks.workload import Case

Multiply = Callable[..., tf.Tensor]
Update = Callable[[tf.Variable, Any], Callable[[tf.Tensor | tf.IndexedSlices], None]]


def sparse_dense_matmul(x: tf.SparseTensor, table: tf.Variable) -> tf.Tensor:
    """tf.sparse.sparse_dense_matmul, whose gradient with respect to the table is dense."""
    return tf.sparse.sparse_dense_matmul(x, table)


def lookup(x: tf.SparseTensor, table: tf.Variable, *, fast: bool = False) -> tf.Tensor:
    """tf.nn.embedding_lookup_sparse; without the fast path, its gradient has distinct ids."""
    ids, weights = _ids_and_weights(x)
    return tf.nn.embedding_lookup_sparse(
        table, ids, weights, combiner="sum", allow_fast_lookup=fast
    )


def safe_lookup(x: tf.SparseTensor, table: tf.Variable) -> tf.Tensor:
    """tf.nn.safe_embedding_lookup_sparse, which also accepts empty rows."""
    ids, weights = _ids_and_weights(x)
    return tf.nn.safe_embedding_lookup_sparse(
        table, ids, weights, combiner="sum", allow_fast_lookup=True
    )


def _ids_and_weights(x: tf.SparseTensor) -> tuple[tf.SparseTensor, tf.SparseTensor]:
    ids = tf.SparseTensor(x.indices, x.indices[:, 1], x.dense_shape)
    return ids, x


def keras_update(make: Callable[[], Any], variable: Any) -> Callable[[Any], None]:
    """The update of a Keras optimizer."""
    optimizer = make()
    optimizer.build([variable])
    return lambda gradient: optimizer.apply_gradients([(gradient, variable)])


def scatter_sub(table: tf.Variable) -> Callable[[tf.IndexedSlices], None]:
    """SGD by the raw op."""

    def update(gradient: tf.IndexedSlices) -> None:
        rows = reference.LEARNING_RATE * gradient.values
        tf.raw_ops.ResourceScatterSub(resource=table.handle, indices=gradient.indices, updates=rows)

    return update


def raw_adagrad(table: tf.Variable) -> Callable[[tf.IndexedSlices], None]:
    """Adagrad by the op that the sparse Adagrad of tf.compat.v1.train uses."""
    slot = tf.Variable(tf.fill(table.shape, reference.INITIAL_ACCUMULATOR))

    def update(gradient: tf.IndexedSlices) -> None:
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle,
            accum=slot.handle,
            lr=reference.LEARNING_RATE,
            epsilon=reference.EPSILON,
            grad=gradient.values,
            indices=gradient.indices,
        )

    return update


def handmade_lazy_adam(table: tf.Variable) -> Callable[[tf.IndexedSlices], None]:
    """A lazy Adam written by hand: gathers the rows of m and v, updates them, scatters them."""
    m, v = (tf.Variable(tf.zeros(table.shape)) for _ in range(2))
    iteration = tf.Variable(0.0)
    b1, b2 = reference.BETA_1, reference.BETA_2

    def update(gradient: tf.IndexedSlices) -> None:
        ids, g = gradient.indices, gradient.values
        t = iteration.assign_add(1.0)
        rate = reference.LEARNING_RATE * tf.sqrt(1 - b2**t) / (1 - b1**t)
        m_rows = b1 * tf.gather(m, ids) + (1 - b1) * g
        v_rows = b2 * tf.gather(v, ids) + (1 - b2) * tf.square(g)
        m.scatter_update(tf.IndexedSlices(m_rows, ids))
        v.scatter_update(tf.IndexedSlices(v_rows, ids))
        change = rate * m_rows / (tf.sqrt(v_rows) + reference.EPSILON)
        table.scatter_sub(tf.IndexedSlices(change, ids))

    return update


def forward(multiply: Multiply, case: Case) -> PreparedContender:
    """The forward pass alone."""
    _, table = keras_table(case.table)
    call = traced(_spec(case))(lambda x: multiply(x, table))
    inputs = sparse_inputs(case)
    return PreparedContender(lambda i: call(*inputs[i]))


def step(
    multiply: Multiply,
    case: Case,
    *,
    keras: Callable[[], Any] | None = None,
    raw: Callable[[tf.Variable], Callable[[tf.IndexedSlices], None]] | None = None,
) -> PreparedContender:
    """Product, gradient and update, by a Keras optimizer or by raw ops."""
    variable, table = keras_table(case.table)
    update = raw(table) if raw else keras_update(keras, variable)

    @traced(_spec(case), tf.TensorSpec([None, None]))
    def run(x: tf.SparseTensor, grad: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            output = multiply(x, table)
        update(tape.gradient(output, table, output_gradients=grad))
        return output

    inputs = sparse_inputs(case)
    grad = tf.constant(case.grad_output)
    return PreparedContender(lambda i: run(*inputs[i], grad), table.numpy)


def _spec(case: Case) -> tf.SparseTensorSpec:
    return tf.SparseTensorSpec([None, case.table.shape[0]], tf.float32)


KERAS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.keras.optimizers.SGD(reference.LEARNING_RATE),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(
        reference.LEARNING_RATE,
        initial_accumulator_value=reference.INITIAL_ACCUMULATOR,
        epsilon=reference.EPSILON,
    ),
    "lazy_adam": lambda: tf.keras.optimizers.Adam(
        reference.LEARNING_RATE, reference.BETA_1, reference.BETA_2, reference.EPSILON
    ),
}
_MATMUL, _LOOKUP = "TF sparse_dense_matmul", "TF embedding_lookup_sparse"
_FAST = partial(lookup, fast=True)


def _keras_steps(rule: str, optimizer: str) -> dict[str, Prepare]:
    return {
        f"{_MATMUL} + {optimizer}": partial(step, sparse_dense_matmul, keras=KERAS[rule]),
        f"{_LOOKUP} + {optimizer}": partial(step, lookup, keras=KERAS[rule]),
    }


_ADAGRAD: dict[str, Prepare] = {
    **_keras_steps("adagrad", "Keras Adagrad"),
    f"{_LOOKUP} + ResourceSparseApplyAdagradV2": partial(step, lookup, raw=raw_adagrad),
}

CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {
        _MATMUL: partial(forward, sparse_dense_matmul),
        _LOOKUP: partial(forward, lookup),
        f"{_LOOKUP}, fast path": partial(forward, _FAST),
        "TF safe_embedding_lookup_sparse, fast path": partial(forward, safe_lookup),
    },
    "sgd": {
        **_keras_steps("sgd", "Keras SGD"),
        f"{_LOOKUP}, fast path + Keras SGD": partial(step, _FAST, keras=KERAS["sgd"]),
        f"{_LOOKUP} + ResourceScatterSub": partial(step, lookup, raw=scatter_sub),
    },
    "adagrad": _ADAGRAD,
    "lazy_adam": {
        **_keras_steps("lazy_adam", "Keras Adam (dense)"),
        f"{_LOOKUP} + a lazy Adam by hand": partial(step, lookup, raw=handmade_lazy_adam),
    },
}
