"""The weights of a choice's candidates while a network is searched."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.research.architecture_search.choice import Choice
from twml_ops.research.architecture_search.field_choices import FieldChoice


class Gate(tf.keras.layers.Layer):
    """Combines the candidates of a choice with weights from the Gumbel-softmax distribution.

    With logits α [..., K], the temperature τ and Gumbel noise g = -log(-log u), u uniform in
    (0, 1), the weights of a training step are softmax((α + g) / τ) (Jang et al. 2017, "Categorical
    Reparameterization with Gumbel-Softmax"; Maddison et al. 2017). One sample is drawn for all
    examples of a batch. In inference, the weights are the ones that `fix` set.

    Args:
        choice: The choice.
        items: None: one decision; otherwise the number of fields that decide.
        **kwargs: Arguments of `tf.keras.layers.Layer`.
    """

    def __init__(self, choice: Choice | FieldChoice, items: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.choice, self.items = choice, items

    def build(self, input_shape: Any) -> None:
        """Creates the logits, at first equal, the temperature and the weights for inference."""
        del input_shape
        candidates = len(self.choice.candidates)
        shape = (candidates,) if self.items is None else (self.items, candidates)
        equal = tf.keras.initializers.Constant(1 / candidates)
        self.logits = self.add_weight(name="logits", shape=shape, initializer="zeros")
        self.temperature = self._state("temperature", (), "ones")
        self.fixed = self._state("fixed", shape, equal)
        super().build(None)

    def _state(self, name: str, shape: tuple[int, ...], initializer: Any) -> Any:
        return self.add_weight(name=name, shape=shape, initializer=initializer, trainable=False)

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        """The combined candidates.

        Args:
            inputs: Tensors for the choice.
            training: Whether weights are drawn.

        Returns:
            What the choice makes of them.
        """
        weights = self.sample() if training else tf.convert_to_tensor(self.fixed)
        return self.choice.combine(inputs, weights)

    def sample(self) -> tf.Tensor:
        """Weights [..., K] of one step."""
        logits = tf.convert_to_tensor(self.logits)
        uniform = tf.random.uniform(tf.shape(logits), 1e-7, 1 - 1e-6)
        noise = -tf.math.log(-tf.math.log(uniform))
        return tf.nn.softmax((logits + noise) / tf.convert_to_tensor(self.temperature))

    def probabilities(self) -> tf.Tensor:
        """softmax(α) [..., K], with which the largest α + g is that of each candidate."""
        return tf.nn.softmax(tf.convert_to_tensor(self.logits))
