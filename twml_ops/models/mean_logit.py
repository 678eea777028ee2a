"""Keras layers that combine models by the mean of their logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import layer_calls, serializable

_CLIP = 1e-7


@serializable
class MeanLogit(tf.keras.layers.Layer):
    """Returns a weighted mean of two logits in inference, and the first one in training.

    Two models that make different mistakes are better together. The first model is trained as if
    the second were not there, so that it does not leave to it what both can learn.

    Args:
        share: weight s of the second logit, in [0, 1]: the mean is (1 - s) first + s second.
        **kwargs: arguments of `tf.keras.layers.Layer`.

    Attributes:
        share: that weight.

    Raises:
        ValueError: `share` is not in [0, 1].
    """

    def __init__(self, share: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        self.share = float(share)

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
        mean = weighted_mean(trained, tf.cast(other, trained.dtype), self.share)
        if training is None or training is False:
            return mean
        return tf.where(tf.cast(training, tf.bool), trained, mean)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the first input."""
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {**super().get_config(), "share": self.share}


def weighted_mean(first: Any, second: Any, share: float) -> Any:
    """The weighted mean of two arrays.

    Args:
        first: an array or tensor of any shape.
        second: one of the same shape.
        share: weight s of the second one, in [0, 1].

    Returns:
        (1 - s) first + s second, of the same shape.
    """
    if share == 0.5:
        return (first + second) / 2
    return (1 - share) * first + share * second


def averaged_logits(model: tf.keras.Model) -> tf.keras.Model | None:
    """The part of a model that computes the logits of which its output is the mean.

    Args:
        model: a functional model.

    Returns:
        A model that shares its layers and returns both inputs [B, L] of its `MeanLogit`, side by
        side as [B, 2 L]; None if there is no such layer.
    """
    tensors: dict[Any, Any] = {}
    for call in layer_calls(model.outputs)[0]:
        tensors.update(zip(call.outputs, call.tensors, strict=True))
        if isinstance(call.layer, MeanLogit):
            logits = [tensors[key] for key in call.inputs]
            both = tf.keras.layers.Concatenate(name="averaged_logits", dtype="float32")(logits)
            return tf.keras.Model(model.input, both)
    return None


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
