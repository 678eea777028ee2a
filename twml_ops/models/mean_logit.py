"""Keras layers that combine models by the mean of their logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable

_CLIP = 1e-7


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


@serializable
class SigmoidOfMeanLogit(tf.keras.layers.Layer):
    """The probability whose logit is the mean of the logits of several probabilities.

    It is the normalized geometric mean of the distributions. Probabilities nearer to 0 or 1 than
    1e-7 count as that.

    Args:
        **kwargs: arguments of `tf.keras.layers.Layer`.
    """

    def call(self, inputs: Any) -> tf.Tensor:
        """Combines a batch.

        Args:
            inputs: a list of probabilities, float [B, L] each.

        Returns:
            [B, L].
        """
        clipped = [tf.clip_by_value(p, _CLIP, 1 - _CLIP) for p in inputs]
        logits = [tf.math.log(p) - tf.math.log1p(-p) for p in clipped]
        return tf.sigmoid(tf.add_n(logits) / len(logits))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the first input."""
        return input_shape[0]
