"""What gradients add up to between two updates: of a table the rows that had one, never all N."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._tape import beside, tf_variable


class Accumulator:
    """The gradients of one variable since its last update.

    It is no state of the optimizer's: a file holds none of it.

    Args:
        variable: of TensorFlow or Keras.
        sparse: whether its gradients are `tf.IndexedSlices`. Their rows are kept behind each other,
            so it costs the memory of so many gradients, whatever the size of the table.
    """

    def __init__(self, variable: Any, sparse: bool) -> None:
        shape = tf_variable(variable).shape
        self._sparse = sparse
        self._variable = variable
        with tf.init_scope(), beside(variable):  # also while a step is traced
            if sparse:
                rows = tf.zeros([0, *shape[1:]])
                self._ids = tf.Variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)
                self._rows = tf.Variable(rows, shape=[None, *shape[1:]], trainable=False)
            else:
                zeros = tf.zeros(shape, tf_variable(variable).dtype)
                self._sum = tf.Variable(zeros, trainable=False)

    def plus(self, gradient: Any) -> Any:
        """All of them and `gradient`; ids of a sparse one repeat."""
        if not self._sparse:
            return self._sum + tf.cast(tf.convert_to_tensor(gradient), self._sum.dtype)
        if not isinstance(gradient, tf.IndexedSlices):  # of a function that reads all rows
            everything = tf.range(tf.shape(gradient, out_type=tf.int64)[0])
            gradient = tf.IndexedSlices(gradient, everything, tf.shape(gradient))
        with beside(self._variable):
            ids = tf.concat([self._ids, tf.cast(gradient.indices, tf.int64)], axis=0)
            rows = tf.concat([self._rows, tf.cast(gradient.values, tf.float32)], axis=0)
        return tf.IndexedSlices(rows, ids, gradient.dense_shape)

    def hold(self, gradient: Any) -> None:
        """Keeps `gradient` for the next update."""
        total = self.plus(gradient)
        if self._sparse:
            self._ids.assign(total.indices)
            self._rows.assign(total.values)
        else:
            self._sum.assign(total)

    def clear(self) -> None:
        """Forgets all of them."""
        if self._sparse:
            self._ids.assign(self._ids[:0])
            self._rows.assign(self._rows[:0])
        else:
            self._sum.assign(tf.zeros_like(self._sum))


class Accumulators:
    """An accumulator for each variable, made when its first gradient tells its kind."""

    def __init__(self) -> None:
        self._of: dict[int, Accumulator] = {}

    def of(self, index: int, variable: Any, gradient: Any) -> Accumulator:
        """That of the optimizer's variable number `index`."""
        if index not in self._of:
            self._of[index] = Accumulator(variable, isinstance(gradient, tf.IndexedSlices))
        return self._of[index]
