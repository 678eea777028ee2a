"""The update rules of optimizers in TensorFlow ops, by the names of cc/core/update_rules.h.

A formula is written once, for anything that can be assigned to: the stock twin of the op
`Twml>ApplyRows` applies it to the touched rows of a table, and `twml_ops.optimizers` to dense
variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

_MIN_FTRL_RATE = 2.0**-100  # kMinFtrlRate of cc/core/update_rules.h


class Assignable(Protocol):
    """The part of `tf.Variable` that formulas use. Each assignment returns the new value."""

    def value(self) -> tf.Tensor:
        """The current value."""

    def assign(self, value: Any) -> Any:
        """Replaces the value."""

    def assign_add(self, delta: Any) -> Any:
        """Adds to the value."""

    def assign_sub(self, delta: Any) -> Any:
        """Subtracts from the value."""


class TensorCell:
    """A tensor that formulas can assign to.

    Args:
        value: the initial value.
    """

    def __init__(self, value: tf.Tensor) -> None:
        self._value = value

    def value(self) -> tf.Tensor:
        """The current value."""
        return self._value

    def assign(self, value: tf.Tensor) -> tf.Tensor:
        """Replaces the value."""
        self._value = value
        return value

    def assign_add(self, delta: tf.Tensor) -> tf.Tensor:
        """Adds to the value."""
        return self.assign(self._value + delta)

    def assign_sub(self, delta: tf.Tensor) -> tf.Tensor:
        """Subtracts from the value."""
        return self.assign(self._value - delta)


# Updates weights and slots in place, given (weights, slots, gradient, hyperparameters). The
# hyperparameters are scalar tensors or Python numbers. Weights have already been decayed.
_Step = Callable[[Assignable, Sequence[Assignable], tf.Tensor, Sequence[Any]], None]


class UpdateFormula(NamedTuple):
    """One update rule.

    Attributes:
        step: updates weights and slots in place.
        slots: the names of the variables that the rule keeps for each table.
        hyperparameters: their names, in the order in which kernels take them.
        rowwise_slots: whether a slot has one number per row, instead of one per weight.
    """

    step: _Step
    slots: tuple[str, ...]
    hyperparameters: tuple[str, ...]
    rowwise_slots: bool = False


def _sgd(w: Assignable, slots: Sequence[Assignable], g: tf.Tensor, hyper: Sequence[Any]) -> None:
    del slots
    w.assign_sub(hyper[0] * g)


def _momentum(
    w: Assignable, slots: Sequence[Assignable], g: tf.Tensor, hyper: Sequence[Any]
) -> None:
    lr, _, momentum, nesterov = hyper
    m = slots[0].assign(momentum * slots[0].value() - lr * g)
    if isinstance(nesterov, float):
        w.assign_add(momentum * m - lr * g if nesterov else m)
    else:
        w.assign_add(tf.where(tf.not_equal(nesterov, 0), momentum * m - lr * g, m))


def _adagrad(
    w: Assignable, slots: Sequence[Assignable], g: tf.Tensor, hyper: Sequence[Any]
) -> None:
    lr, _, epsilon = hyper
    a = slots[0].assign_add(tf.square(g))
    w.assign_sub(lr * g / tf.sqrt(a + epsilon))


def _rowwise_adagrad(
    w: Assignable, slots: Sequence[Assignable], g: tf.Tensor, hyper: Sequence[Any]
) -> None:
    lr, _, epsilon = hyper
    a = slots[0].assign_add(_mean_squares(g))
    w.assign_sub(tf.expand_dims(lr / tf.sqrt(a + epsilon), 1) * g)


def _mean_squares(g: tf.Tensor) -> tf.Tensor:
    """The mean square of each row of a matrix [R, D], shape [R]; 0 where D is 0."""
    width = tf.cast(tf.shape(g)[1], g.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(tf.square(g), axis=1), width)


def _lazy_adam(
    w: Assignable, slots: Sequence[Assignable], g: tf.Tensor, hyper: Sequence[Any]
) -> None:
    lr, _, beta_1, beta_2, epsilon = hyper
    m = slots[0].assign_add((g - slots[0].value()) * (1 - beta_1))
    v = slots[1].assign_add((tf.square(g) - slots[1].value()) * (1 - beta_2))
    w.assign_sub(lr * m / (tf.sqrt(v) + epsilon))


def _ftrl(w: Assignable, slots: Sequence[Assignable], g: tf.Tensor, hyper: Sequence[Any]) -> None:
    lr, _, power, l1, l2, shrinkage = hyper
    weights, a, z = w.value(), slots[0].value(), slots[1].value()
    total = a + tf.square(g)
    before, after = tf.pow(a, -power), tf.pow(total, -power)
    new_z = z + g + 2 * shrinkage * weights - (after - before) / lr * weights
    scale = after / lr + 2 * l2
    new = (tf.clip_by_value(new_z, -l1, l1) - new_z) / scale
    new = tf.where(tf.equal(scale, 0), weights, new)
    steps = tf.abs(lr) >= _MIN_FTRL_RATE
    w.assign(tf.where(steps, new, weights))
    slots[0].assign(tf.where(steps, total, a))
    slots[1].assign(tf.where(steps, new_z, z))


# What the formulas compute and where they come from: cc/core/update_rules.h and the optimizers.
UPDATE_FORMULAS = {
    "sgd": UpdateFormula(_sgd, (), ("learning_rate", "decay")),
    "momentum": UpdateFormula(
        _momentum, ("momentum",), ("learning_rate", "decay", "momentum", "nesterov")
    ),
    "adagrad": UpdateFormula(_adagrad, ("accumulator",), ("learning_rate", "decay", "epsilon")),
    "rowwise_adagrad": UpdateFormula(
        _rowwise_adagrad,
        ("accumulator",),
        ("learning_rate", "decay", "epsilon"),
        rowwise_slots=True,
    ),
    "lazy_adam": UpdateFormula(
        _lazy_adam, ("m", "v"), ("learning_rate", "decay", "beta_1", "beta_2", "epsilon")
    ),
    "ftrl": UpdateFormula(
        _ftrl,
        ("accumulator", "linear"),
        ("learning_rate", "decay", "learning_rate_power", "l1", "l2", "l2_shrinkage"),
    ),
}
