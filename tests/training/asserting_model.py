"""A model that fails at a batch of 301 examples, as some model may at data it has not seen."""

import tensorflow as tf

from twml_ops import models


@tf.keras.utils.register_keras_serializable("tests")
class Asserting(tf.keras.layers.Layer):
    """Returns its input."""

    def call(self, x):
        """Returns `x`."""
        with tf.control_dependencies([tf.debugging.assert_none_equal(tf.shape(x)[0], 301)]):
            return tf.identity(x)

    def compute_output_shape(self, shape):
        """The shape of the input."""
        return shape


def build(schema, dataset):
    """A small network."""
    model = models.sparse_mlp(schema, dataset, units=4, hidden=(4,))
    return tf.keras.Model(model.input, Asserting()(model.output))
