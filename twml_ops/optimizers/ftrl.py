"""Follow the regularized leader: exact zeros for rare features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.ops.stock.apply_rows import ftrl_step
from twml_ops.optimizers._base import SparseOptimizer


@serializable
class Ftrl(SparseOptimizer):
    """FTRL-proximal with L1 and L2 (McMahan et al. 2013, "Ad click prediction"), Keras' form.

    `s = a + g^2; z += g + 2 shrinkage w - (s^-p - a^-p) / lr * w; w = (clip(z, -l1, l1) - z) /
    (s^-p / lr + 2 l2)`, p the learning_rate_power.

    A learning rate of 0, as at the end of a schedule, leaves the touched rows and their slots as
    they are (but for `weight_decay`): z divides by the rate, so there is no step to take. The
    formula takes the rate for a constant: where a schedule lowers it, the weights of touched rows
    shrink with it, as they do in Keras.

    Args:
        learning_rate: float, or any Keras schedule.
        learning_rate_power: p <= 0; -0.5 is the usual 1 / sqrt.
        initial_accumulator_value: a before the first step.
        l1_regularization_strength: L1; weights of rare features become exactly 0.
        l2_regularization_strength: L2.
        l2_shrinkage_regularization_strength: L2 on the gradient only.
        beta: added to the learning rate's root, as in the paper.
        name: of the optimizer.
        **kwargs: as for `SGD`.
    """

    rule = "ftrl"
    slot_names = ("accumulator", "linear")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, **kwargs)
        if learning_rate_power > 0:
            raise ValueError(f"learning_rate_power must not be positive, got {learning_rate_power}")
        self._config = {
            "learning_rate_power": learning_rate_power,
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
            "beta": beta,
        }
        for argument, value in self._config.items():
            if argument != "learning_rate_power" and value < 0:
                raise ValueError(f"{argument} must not be negative, got {value!r}")

    def _initial_slot(self, name: str) -> float:
        return self._config["initial_accumulator_value"] if name == "accumulator" else 0.0

    def _hyper(self, lr: Any) -> list[Any]:
        c = self._config
        lr = tf.convert_to_tensor(lr)
        root = tf.math.divide_no_nan(tf.cast(c["beta"], lr.dtype), 2.0 * lr)
        return [
            c["learning_rate_power"],
            c["l1_regularization_strength"],
            c["l2_regularization_strength"] + root,
            c["l2_shrinkage_regularization_strength"],
        ]

    def _dense_update(
        self, gradient: tf.Tensor, variable: tf.Variable, slots: Sequence[tf.Variable], lr: Any
    ) -> None:
        hyper = [lr, 0.0, *self._hyper(lr)]
        new = ftrl_step(variable, slots, gradient, hyper)
        for v, value in zip([variable, *slots], new, strict=True):
            v.assign(value)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), **self._config}
