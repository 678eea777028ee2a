"""The Keras layer that adds the bias of each label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable


@serializable
class Bias(tf.keras.layers.Layer):
    """Adds a trainable number to each column of [B, L].

    Args:
        initial: the L initial values.
        **kwargs: arguments of `tf.keras.layers.Layer`.
    """

    bias: Any

    def __init__(self, initial: Sequence[float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = [float(x) for x in initial]

    def build(self, input_shape: Any = None) -> None:
        """Creates the bias [L]."""
        del input_shape
        first = self.initial[0] if len(self.initial) == 1 else self.initial
        self.bias = self.add_weight(
            name="bias",
            shape=(len(self.initial),),
            initializer=tf.keras.initializers.Constant(first),
            trainable=True,
        )
        super().build(None)

    def call(self, inputs: Any) -> tf.Tensor:
        """Adds the bias.

        Args:
            inputs: float [B, L].

        Returns:
            [B, L].
        """
        return inputs + tf.convert_to_tensor(self.bias)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "initial": list(self.initial)}
