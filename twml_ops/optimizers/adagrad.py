"""Adagrad, by element and by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.ops.stock.apply_rows import mean_squares
from twml_ops.optimizers._base import SparseOptimizer


@serializable
class Adagrad(SparseOptimizer):
    """`a += g^2; w -= learning_rate * g / sqrt(a + epsilon)` (Duchi, Hazan & Singer 2011).

    Args:
        learning_rate: float, or any Keras schedule.
        initial_accumulator_value: a before the first step.
        epsilon: keeps the root away from 0.
        name: of the optimizer.
        **kwargs: as for `SGD`.
    """

    rule = "adagrad"
    slot_names = ("accumulator",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, **kwargs)
        if initial_accumulator_value < 0:
            raise ValueError(
                f"initial_accumulator_value must not be negative, got {initial_accumulator_value!r}"
            )
        if epsilon < 0 or not (epsilon or initial_accumulator_value):
            raise ValueError(
                "epsilon must be positive, or 0 with a positive initial_accumulator_value (a "
                f"gradient of 0 would be divided by 0), got {epsilon!r}"
            )
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def _initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value

    def _hyper(self, lr: Any) -> list[Any]:
        del lr
        return [self.epsilon]

    def _dense_update(
        self, gradient: tf.Tensor, variable: tf.Variable, slots: Sequence[tf.Variable], lr: Any
    ) -> None:
        a = slots[0].assign_add(self._squares(gradient))
        a = tf.reshape(a, a.shape + [1] * (len(gradient.shape) - len(a.shape)))
        variable.assign_sub(lr * gradient / tf.sqrt(a + self.epsilon))

    def _squares(self, gradient: tf.Tensor) -> tf.Tensor:
        return tf.square(gradient)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


@serializable
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator a row, `a += mean(g^2)`: D times less optimizer memory.

    Variables that are not matrices keep one accumulator an element. Arguments as for `Adagrad`.
    """

    rule = "rowwise_adagrad"
    rowwise_slots = True

    def rule_for(self, shape: Sequence[int]) -> str:
        """By row for a matrix, else by element."""
        return self.rule if len(shape) == 2 else Adagrad.rule

    def slot_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """One number a row of a matrix, else one an element."""
        return tuple(shape[:1] if len(shape) == 2 else shape)

    def _squares(self, gradient: tf.Tensor) -> tf.Tensor:
        return mean_squares(gradient) if len(gradient.shape) == 2 else tf.square(gradient)
