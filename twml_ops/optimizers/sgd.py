"""Gradient descent, plain and with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.optimizers._base import SparseOptimizer


@serializable
class SGD(SparseOptimizer):
    """`w -= learning_rate * g`.

    Args:
        learning_rate: float, or any Keras schedule.
        name: of the optimizer.
        **kwargs: clipnorm, clipvalue, global_clipnorm, weight_decay, loss_scale_factor, as in
            Keras; see `SparseOptimizer` for what they mean for sparse gradients.
    """

    rule = "sgd"

    def __init__(self, learning_rate: Any = 0.01, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(learning_rate, name, **kwargs)

    def _dense_update(
        self, gradient: tf.Tensor, variable: tf.Variable, slots: Sequence[tf.Variable], lr: Any
    ) -> None:
        variable.assign_sub(lr * gradient)


@serializable
class Momentum(SparseOptimizer):
    """`m = momentum * m - learning_rate * g; w += m` (Nesterov: `w += momentum * m - lr * g`).

    Sparse gradients move the touched rows only: a row at rest keeps both w and m, where dense
    momentum would coast on.

    Args:
        learning_rate: float, or any Keras schedule.
        momentum: in [0, 1).
        nesterov: whether to look ahead (Nesterov 1983, in Keras' form).
        name: of the optimizer.
        **kwargs: as for `SGD`.
    """

    rule = "momentum"
    slot_names = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, **kwargs)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum!r}")
        self.momentum = momentum
        self.nesterov = nesterov

    def _hyper(self, lr: Any) -> list[Any]:
        del lr
        return [self.momentum, float(self.nesterov)]

    def _dense_update(
        self, gradient: tf.Tensor, variable: tf.Variable, slots: Sequence[tf.Variable], lr: Any
    ) -> None:
        m = slots[0].assign(self.momentum * slots[0] - lr * gradient)
        variable.assign_add(self.momentum * m - lr * gradient if self.nesterov else m)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "momentum": self.momentum, "nesterov": self.nesterov}
