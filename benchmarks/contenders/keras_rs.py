"""keras-rs: the EmbedReduce layer on ragged batches, with the optimizers of Keras."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras_rs
import tensorflow as tf

from benchmarks.contender import FORWARD, NotAvailable, Prepare, PreparedContender
from benchmarks.contenders.tf import KERAS
from benchmarks.tf_support import traced
from benchmarks.workload import Case


def _layer(case: Case) -> Any:
    rows, units = case.table.shape
    layer = keras_rs.layers.EmbedReduce(rows, units, combiner="sum")
    layer.build((None, None))
    layer.embeddings.assign(tf.concat([case.table[:1], case.table[1:]], axis=0))
    return layer


def _inputs(case: Case) -> list[tuple[tf.RaggedTensor, tf.RaggedTensor]]:
    ragged = tf.RaggedTensor.from_row_splits
    return [(ragged(b.ids, b.row_splits), ragged(b.values, b.row_splits)) for b in case.batches]


_SPEC = [tf.RaggedTensorSpec([None, None], t) for t in (tf.int64, tf.float32)]


def forward(case: Case) -> PreparedContender:
    """The forward pass alone."""
    layer, inputs = _layer(case), _inputs(case)
    call = traced(*_SPEC)(lambda ids, values: layer(ids, values))
    return PreparedContender(lambda i: call(*inputs[i]))


def step(rule: str, case: Case) -> PreparedContender:
    """A step with the Keras optimizer of the rule."""
    layer, inputs = _layer(case), _inputs(case)
    optimizer, variable = KERAS[rule](), layer.embeddings
    optimizer.build([variable])
    grad = tf.constant(case.grad_output)

    @traced(*_SPEC)
    def run(ids: tf.RaggedTensor, values: tf.RaggedTensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            output = layer(ids, values)
        gradient = tape.gradient(output, variable.value, output_gradients=grad)
        optimizer.apply_gradients([(gradient, variable)])
        return output

    return PreparedContender(lambda i: run(*inputs[i]), variable.numpy)


def no_rowwise_adagrad(case: Case) -> PreparedContender:
    """Keras does not offer it."""
    raise NotAvailable("Keras has no row-wise Adagrad")


CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {"keras-rs EmbedReduce": forward},
    "sgd": {"keras-rs EmbedReduce + Keras SGD": partial(step, "sgd")},
    "adagrad": {"keras-rs EmbedReduce + Keras Adagrad": partial(step, "adagrad")},
    "rowwise_adagrad": {"keras-rs": no_rowwise_adagrad},
    "lazy_adam": {"keras-rs EmbedReduce + Keras Adam (dense)": partial(step, "lazy_adam")},
}
