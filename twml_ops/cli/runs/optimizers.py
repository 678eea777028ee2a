"""The optimizers by name, each with a learning rate to start from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from twml_ops import optimizers
from twml_ops.cli.errors import UserError

# Far below a batch's squared gradients for frequent ids and near those for ids seen once: the first
# steps of a rare id are then proportional to its gradient, which holds it back as L2 would.
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


def names() -> list[str]:
    """The names of the optimizers."""
    return list(_OPTIMIZERS)


def learning_rate_of(name: str) -> float:
    """The default learning rate of the optimizer `name`.

    Raises:
        UserError: there is no such optimizer.
    """
    if name not in _OPTIMIZERS:
        expected = ", ".join(names())
        raise UserError(f"unknown optimizer {name!r}: expected one of {expected}")
    return _OPTIMIZERS[name][1]


def create(
    name: str,
    learning_rate: float,
    steps: int,
    scaled: Callable[[Any], Any] = lambda rate: rate,
    **options: Any,
) -> tf.keras.optimizers.Optimizer:
    """The optimizer `name`, its learning rate falling linearly to 0 over `steps`.

    The fall averages out the noise of the last steps, and makes a fixed number of epochs enough:
    there is no stopping by the evaluation data. FTRL keeps its rate: it computes the weights anew
    from all gradients and the rate of the day, so a rate of 0 would undo them.

    Args:
        name: of the optimizer.
        learning_rate: at the start.
        steps: until the end.
        scaled: what becomes of that rate or schedule, such as a warm-up.
        **options: of the optimizer.
    """
    rate: Any = learning_rate
    if name != "ftrl":
        rate = tf.keras.optimizers.schedules.PolynomialDecay(learning_rate, max(steps, 1), 0.0)
    return _OPTIMIZERS[name][0](scaled(rate), **options)
