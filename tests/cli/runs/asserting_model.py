"""A model that fails at a feature of the value 777, as some model may at data it has not seen."""

import tensorflow as tf

from twml_ops import models


@tf.keras.utils.register_keras_serializable("tests")
class Asserting(tf.keras.layers.Layer):
    """Returns its input."""

    def call(self, x, features):
        """Returns `x`."""
        with tf.control_dependencies([tf.debugging.assert_none_equal(features.flat_values, 777.0)]):
            return tf.identity(x)

    def compute_output_shape(self, shape, features):
        """That of `x`."""
        return shape


def build(schema, dataset):
    """A small network."""
    model = models.sparse_mlp(schema, dataset, units=4, hidden=(4,))
    values = model.input["sparse_values"]
    return tf.keras.Model(model.input, Asserting()(model.output, features=values))
