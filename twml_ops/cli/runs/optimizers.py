"""The optimizers by name, with their default learning rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from twml_ops import optimizers
from twml_ops.cli.errors import UserError

# Far below the squared gradients of frequent ids in a batch, and near the squared gradients of ids
# seen once. The first steps of a rare id are then proportional to its gradient, which has the
# effect of L2.
_ACCUMULATOR = 1e-5

_OPTIMIZERS: dict[str, tuple[Callable[..., tf.keras.optimizers.Optimizer], float]] = {
    "adagrad": (partial(optimizers.Adagrad, initial_accumulator_value=_ACCUMULATOR), 0.04),
    "rowwise_adagrad": (
        partial(optimizers.RowWiseAdagrad, initial_accumulator_value=_ACCUMULATOR),
        0.04,
    ),
    "lazy_adam": (optimizers.LazyAdam, 0.002),
    "ftrl": (partial(optimizers.Ftrl, initial_accumulator_value=_ACCUMULATOR), 0.04),
    "momentum": (optimizers.Momentum, 0.02),
    "sgd": (optimizers.SGD, 0.2),
}


# The cross layers multiply their inputs, so large steps of one weight disturb all others.
_RATE_FACTORS = {"dcn": 0.5}


def names() -> list[str]:
    """The names of the optimizers."""
    return list(_OPTIMIZERS)


def learning_rate_of(name: str, model: str = "") -> float:
    """The default learning rate.

    Args:
        name: name of the optimizer.
        model: name of the model.

    Raises:
        UserError: `name` is unknown.
    """
    if name not in _OPTIMIZERS:
        expected = ", ".join(names())
        raise UserError(f"unknown optimizer {name!r}: expected one of {expected}")
    return _OPTIMIZERS[name][1] * _RATE_FACTORS.get(model, 1.0)


def create(
    name: str,
    learning_rate: float,
    steps: int | None = None,
    scaled: Callable[[Any], Any] = lambda rate: rate,
    **options: Any,
) -> tf.keras.optimizers.Optimizer:
    """Creates an optimizer whose learning rate is constant, or decreases linearly to 0.

    The decrease averages out the noise of the last steps. FTRL always has a constant learning rate:
    it computes the weights from the sum of all gradients and the current rate, so a rate of 0 would
    set them to 0.

    Args:
        name: name of the optimizer.
        learning_rate: initial learning rate.
        steps: number of steps after which the rate is 0; None: it is constant.
        scaled: function of the learning rate or schedule, for example a warm-up.
        **options: arguments of the optimizer.
    """
    rate: Any = learning_rate
    if steps is not None and name != "ftrl":
        rate = tf.keras.optimizers.schedules.PolynomialDecay(learning_rate, max(steps, 1), 0.0)
    return _OPTIMIZERS[name][0](scaled(rate), **options)
