"""Inputs and tables in TensorFlow's forms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.workload import Batch, Case
from twml_ops.ops._tape import tf_variable

CSR_SIGNATURE = [
    tf.TensorSpec([None], tf.int64),
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([None], tf.int64),
]


def traced(*signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A tf.function of inputs of that signature, called by the concrete function it is traced to.

    To match arguments with traces costs 0.7 ms of Python a call, more than some of the work.
    """

    def trace(f: Callable[..., Any]) -> Callable[..., Any]:
        concrete = tf.function(f, input_signature=signature).get_concrete_function()

        @functools.wraps(f)  # which keeps f, and what it closes over: concrete does so weakly
        def call(*inputs: Any) -> Any:
            return concrete(*inputs)

        return call

    return trace


def csr_inputs(batches: Sequence[Batch]) -> list[tuple[tf.Tensor, ...]]:
    """(ids, values, row_splits) of each batch."""
    return [tuple(map(tf.constant, (b.ids, b.values, b.row_splits))) for b in batches]


def sparse_inputs(case: Case) -> list[tuple[tf.SparseTensor]]:
    """The [B, N] SparseTensor of each batch."""
    columns = case.table.shape[0]
    return [
        (
            tf.SparseTensor(
                np.stack([b.row_indices, b.ids], axis=1), b.values, [b.num_rows, columns]
            ),
        )
        for b in case.batches
    ]


def keras_table(table: np.ndarray) -> tuple[Any, tf.Variable]:
    """A Keras variable holding a copy of `table`, and the tf.Variable behind it.

    The memory is TensorFlow's own, as in training: NumPy's big arrays sit on huge pages.
    """
    layer = tf.keras.layers.Layer()
    variable = layer.add_weight(
        name="table",
        shape=table.shape,
        initializer=lambda *_args, **_kwargs: tf.concat([table[:1], table[1:]], axis=0),
    )
    return variable, tf_variable(variable)
