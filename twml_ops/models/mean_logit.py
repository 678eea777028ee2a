"""The Keras layer that averages the logits of a net and of boosted trees in inference."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable


@serializable
class MeanLogit(tf.keras.layers.Layer):
    """Returns the mean of two logits in inference, and the first one in training.

    Two models that make different mistakes are better together. The first model is trained as if
    the second were not there, so that it does not leave to it what both can learn.

    Args:
        **kwargs: arguments of `tf.keras.layers.Layer`.
    """

    def call(self, inputs: Any, training: Any = None) -> tf.Tensor:
        """Averages a batch.

        Args:
            inputs: a list of the logits of the model in training and the logits of the other one,
                float [B, L] each.
            training: whether the result is the first logit alone.

        Returns:
            [B, L].
        """
        trained, other = inputs
        if training is True:
            return tf.identity(trained)
        mean = (trained + tf.cast(other, trained.dtype)) / 2
        if training is None or training is False:
            return mean
        return tf.where(tf.cast(training, tf.bool), trained, mean)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the first input."""
        return input_shape[0]
