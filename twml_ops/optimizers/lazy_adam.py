"""Adam that leaves rows without a gradient alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import serializable
from twml_ops.optimizers._base import SparseOptimizer


@serializable
class LazyAdam(SparseOptimizer):
    """Adam (Kingma & Ba 2015); rows without a gradient keep weights, m and v bit for bit.

    Bias correction goes by the global step, not by the row's own count of updates. Dense
    gradients are updated as Keras' Adam does.

    Args:
        learning_rate: float, or any Keras schedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the second moment.
        name: of the optimizer.
        **kwargs: as for `SGD`.
    """

    rule = "lazy_adam"
    slot_names = ("m", "v")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, **kwargs)
        for argument, value in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0 <= value < 1:
                raise ValueError(f"{argument} must be in [0, 1), got {value!r}")
        if not epsilon > 0:
            raise ValueError(
                f"epsilon must be positive (a gradient of 0 would be divided by 0), got {epsilon!r}"
            )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def _effective_learning_rate(self, learning_rate: tf.Tensor) -> tf.Tensor:
        step = tf.convert_to_tensor(self.iterations) + 1
        return ops.bias_corrected(learning_rate, step, self.beta_1, self.beta_2)

    def _hyper(self, lr: Any) -> list[Any]:
        del lr
        return [self.beta_1, self.beta_2, self.epsilon]

    def _dense_update(
        self, gradient: tf.Tensor, variable: tf.Variable, slots: Sequence[tf.Variable], lr: Any
    ) -> None:
        m = slots[0].assign_add((gradient - slots[0]) * (1 - self.beta_1))
        v = slots[1].assign_add((tf.square(gradient) - slots[1]) * (1 - self.beta_2))
        variable.assign_sub(lr * m / (tf.sqrt(v) + self.epsilon))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }
