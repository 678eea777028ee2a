"""The same models with the sparse product and the optimizers of TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops.ops._tape import tf_variable
from twml_ops.placement import Placement, placement_scope, set_placement
from twml_ops.placement.entries import CsrEntries


class StockProducts(Placement):
    """Tables in this process, which `tf.sparse.sparse_dense_matmul` multiplies."""

    def create(self, add: Any, shape: Any, initializer: Any, name: str, dtype: Any) -> Any:
        """See `Placement.create`."""
        variable = super().create(add, shape, initializer, name, dtype)
        set_placement(variable, self)
        return variable

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement.sparse_linear`."""
        ids, values, splits = entries
        count = tf.size(splits) - 1
        rows = tf.repeat(tf.range(count), splits[1:] - splits[:-1])
        indices = tf.stack([tf.cast(rows, tf.int64), tf.cast(ids, tf.int64)], axis=1)
        numbers = tf.ones(tf.shape(ids)) if values is None else values
        shape = tf.cast(tf.stack([count, table.shape[0]]), tf.int64)
        return tf.sparse.sparse_dense_matmul(
            tf.SparseTensor(indices, numbers, shape), tf_variable(table)
        )


def model(build: Callable[[], Any]) -> Any:
    """Builds a model with stock products.

    Args:
        build: () -> an uncompiled Keras model.
    """
    with placement_scope(StockProducts()):
        return build()


def optimizer(ours: Any) -> Any:
    """The optimizer of Keras with the name and the options of one of twml_ops."""
    stock = getattr(tf.keras.optimizers, type(ours).__name__)
    known = stock().get_config()
    return stock.from_config({k: v for k, v in ours.get_config().items() if k in known})
