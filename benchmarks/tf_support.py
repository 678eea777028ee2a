"""Inputs and tables as TensorFlow objects."""

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
    """Decorator: traces a function for inputs of `signature`, and calls its concrete function.

    The call of a tf.function matches the arguments with its traces, which takes 0.7 ms of Python,
    more than some of the measured work.
    """

    def trace(f: Callable[..., Any]) -> Callable[..., Any]:
        concrete = tf.function(f, input_signature=signature).get_concrete_function()

        @functools.wraps(f)  # keeps f and its variables alive; the concrete function does not
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
    """A Keras variable with a copy of `table`, and its tf.Variable.

    TensorFlow allocates the memory, as in training. Large NumPy arrays would be on huge pages.
    """
    layer = tf.keras.layers.Layer()
    variable = layer.add_weight(
        name="table",
        shape=table.shape,
        initializer=lambda *_args, **_kwargs: tf.concat([table[:1], table[1:]], axis=0),
    )
    return variable, tf_variable(variable)
