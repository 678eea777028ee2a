"""Sums of gradients between two updates. Of a table only the rows with a gradient are kept."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._tape import device_scope_of, tf_variable


class Accumulator:
    """The gradients of one variable since the last update.

    A gradient that is kept for an update in which the variable has none is dropped, as by Keras.
    Gradients know the number of the update that they are kept for, since the function that updates
    need not know every accumulator. They are not part of the optimizer's state, so files do not
    contain them.

    Args:
        variable: of TensorFlow or Keras.
        sparse: whether its gradients are `tf.IndexedSlices`. Their rows are concatenated, which
            costs the memory of these gradients, whatever the size of the table.
    """

    def __init__(self, variable: Any, sparse: bool) -> None:
        shape = tf_variable(variable).shape
        self._sparse = sparse
        self._accumulated = variable
        with tf.init_scope(), device_scope_of(variable):  # A step may be being traced.
            self._number = tf.Variable(-1, dtype=tf.int64, trainable=False)
            if sparse:
                is_wide = tf_variable(variable).dtype == tf.float64
                rows = tf.zeros([0, *shape[1:]], tf.float64 if is_wide else tf.float32)
                self._sparse_ids = tf.Variable(
                    tf.zeros([0], tf.int64), shape=[None], trainable=False
                )
                self._rows = tf.Variable(rows, shape=[None, *shape[1:]], trainable=False)
            else:
                zeros = tf.zeros(shape, tf_variable(variable).dtype)
                self._sum = tf.Variable(zeros, trainable=False)

    def total(self, gradient: Any, number: tf.Tensor) -> Any:
        """The sum of the gradients for an update and `gradient`; ids of a sparse one repeat.

        Args:
            gradient: the gradient of the step.
            number: int64 scalar, the number of the update.
        """
        is_current = tf.equal(self._number, number)
        if not self._sparse:
            kept = tf.where(is_current, self._sum, tf.zeros_like(self._sum))
            return kept + tf.cast(tf.convert_to_tensor(gradient), self._sum.dtype)
        if not isinstance(gradient, tf.IndexedSlices):  # The loss reads all rows in this step.
            everything = tf.range(tf.shape(gradient, out_type=tf.int64)[0])
            gradient = tf.IndexedSlices(gradient, everything, tf.shape(gradient))
        with device_scope_of(self._accumulated):
            count = tf.where(is_current, tf.size(self._sparse_ids), 0)
            ids, rows = self._sparse_ids[:count], self._rows[:count]
            ids = tf.concat([ids, tf.cast(gradient.indices, tf.int64)], axis=0)
            rows = tf.concat([rows, tf.cast(gradient.values, rows.dtype)], axis=0)
        return tf.IndexedSlices(rows, ids, gradient.dense_shape)

    def add(self, gradient: Any, number: tf.Tensor) -> None:
        """Keeps `gradient` for an update; see `total`."""
        total = self.total(gradient, number)
        if self._sparse:
            self._sparse_ids.assign(total.indices)
            self._rows.assign(total.values)
        else:
            self._sum.assign(total)
        self._number.assign(number)

    def clear(self) -> None:
        """Removes all gradients."""
        if self._sparse:
            self._sparse_ids.assign(self._sparse_ids[:0])
            self._rows.assign(self._rows[:0])
        else:
            self._sum.assign(tf.zeros_like(self._sum))


class Accumulators:
    """An accumulator for each variable, created when its first gradient shows the kind."""

    def __init__(self) -> None:
        self._accumulators: dict[int, Accumulator] = {}

    def get(self, index: int, variable: Any, gradient: Any) -> Accumulator:
        """The accumulator of the optimizer's variable number `index`."""
        if index not in self._accumulators:
            sparse = isinstance(gradient, tf.IndexedSlices)
            self._accumulators[index] = Accumulator(variable, sparse)
        return self._accumulators[index]
