"""Translates an optimizer of this package into the one that updates a TPU's embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from twml_ops import optimizers

_embedding = tf.tpu.experimental.embedding
# Options of all optimizers that change the updates, and their values without effect.
_REFUSED = {
    "clipnorm": None,
    "global_clipnorm": None,
    "weight_decay": None,
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
    "concurrency": "locked",
}


def table_optimizer(optimizer: Any, iterations: Any = None) -> Any:
    """The optimizer of `tf.tpu.experimental.embedding` that does what `optimizer` does.

    SGD, Adagrad, LazyAdam and Ftrl have one. A TPU's Adagrad has no epsilon, which is added to the
    initial accumulator instead. Its Adam has no bias correction, which becomes part of the learning
    rate of each step. There is no optimizer with momentum alone: `Momentum` becomes an
    `AdagradMomentum` whose divisor is 1. docs/tpu.md has the options of each.

    Args:
        optimizer: one of `twml_ops.optimizers`. A constant learning rate is read once.
        iterations: the number of steps, at which schedules and Adam's bias correction are
            evaluated; None: `optimizer.iterations`, which counts only the steps in which
            `optimizer` updates other weights.

    Returns:
        An optimizer of `tf.tpu.experimental.embedding`.

    Raises:
        ValueError: `optimizer` has no counterpart, or an option that TPU tables do not support.
    """
    make = _MAKERS.get(type(optimizer))
    if make is None:
        kind = type(optimizer)
        scaled = hasattr(optimizer, "inner_optimizer")
        why = ": gradients of tables would keep its scale of the loss" if scaled else ""
        raise ValueError(
            "optimizer of a TPU's table must be SGD, Momentum, Adagrad, LazyAdam or Ftrl of "
            f"twml_ops.optimizers, got {kind.__module__}.{kind.__name__}{_WHY_NOT.get(kind, why)}"
        )
    for option, unused in _REFUSED.items():
        value = getattr(optimizer, option, unused)
        if value and value != unused:
            raise ValueError(
                f"{option} is not supported by the tables of a TPU, expected {unused!r}, got "
                f"{option}={value!r} of {type(optimizer).__name__}"
            )
    steps = optimizer.iterations if iterations is None else iterations
    return make(optimizer, steps, {"clipvalue": optimizer.clipvalue or None})


def optimizers_of_tables(optimizer: Any) -> Callable[[Any], Any]:
    """Chooses the optimizer of each table.

    Args:
        optimizer: one that `table_optimizer` takes, or a `CompositeOptimizer`, whose steps count.
            Only its optimizers of tables are translated.

    Returns:
        A function: variable of a table → optimizer of `tf.tpu.experimental.embedding`, the same one
        for all tables that `optimizer` updates alike.

    Raises:
        ValueError: when called, as `table_optimizer`.
    """
    made: dict[int, Any] = {}

    def of(variable: Any) -> Any:
        part = optimizer
        while isinstance(part, optimizers.CompositeOptimizer):
            part = part.optimizer_of(variable)
        if id(part) not in made:
            made[id(part)] = table_optimizer(part, getattr(optimizer, "iterations", None))
        return made[id(part)]

    return of


def check_sparse_core_options(configs: Mapping[str, Any]) -> None:
    """Refuses what `TPUEmbeddingV2` ignores, which runs on TPUs with SparseCores.

    Args:
        configs: the result of `feature_configs`.

    Raises:
        ValueError: the gradients of a table are clipped.
    """
    for config in configs.values():
        made = config.table.optimizer
        limits = getattr(made, "clip_gradient_min", None), getattr(made, "clip_gradient_max", None)
        if limits != (None, None):
            raise ValueError(
                "clipvalue is ignored by TPUEmbeddingV2, which TPUs with SparseCores have, "
                f"expected None, got {limits[1]!r} for table {config.table.name!r}"
            )


def _sgd(optimizer: Any, steps: Any, common: dict[str, Any]) -> Any:
    return _embedding.SGD(_rate(optimizer, steps), **common)


def _momentum(optimizer: Any, steps: Any, common: dict[str, Any]) -> Any:
    # AdagradMomentum divides gradients by (a + epsilon)^(1 / exponent), where a is not negative;
    # beta2 < 1 makes a mean of a, which does not overflow. With a large exponent the divisor is 1.
    # Its momentum adds up gradients, ours steps, which is the same while the rate is constant.
    if optimizer.follows_schedule:
        raise ValueError(
            "learning_rate of Momentum must be a number for the tables of a TPU, whose momentum "
            f"contains no earlier rates, got {optimizer.learning_rate_argument!r}"
        )
    return _embedding.AdagradMomentum(
        _rate(optimizer, steps),
        momentum=optimizer.momentum,
        use_nesterov=optimizer.nesterov,
        exponent=1e30,
        beta2=0.5,
        epsilon=1.0,
        **common,
    )


def _adagrad(optimizer: Any, steps: Any, common: dict[str, Any]) -> Any:
    initial = optimizer.initial_accumulator_value + optimizer.epsilon
    return _embedding.Adagrad(_rate(optimizer, steps), initial, **common)


def _adam(optimizer: Any, steps: Any, common: dict[str, Any]) -> Any:
    def rate() -> tf.Tensor:
        plain = optimizer.current_learning_rate(steps)
        return optimizer.update_rule.step_size(plain, tf.cast(steps, tf.int64))

    return _embedding.Adam(
        rate,
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        lazy_adam=True,
        sum_inside_sqrt=False,
        **common,
    )


def _ftrl(optimizer: Any, steps: Any, common: dict[str, Any]) -> Any:
    if optimizer.l2_shrinkage_regularization_strength:
        raise ValueError(
            "l2_shrinkage_regularization_strength is not supported by a TPU's FTRL, expected 0, "
            f"got {optimizer.l2_shrinkage_regularization_strength!r}"
        )
    if optimizer.initial_accumulator_value <= 0:
        raise ValueError(
            "initial_accumulator_value of Ftrl must be positive for the tables of a TPU, got "
            f"{optimizer.initial_accumulator_value}"
        )
    return _embedding.FTRL(
        _rate(optimizer, steps),
        learning_rate_power=optimizer.learning_rate_power,
        l1_regularization_strength=optimizer.l1_regularization_strength,
        l2_regularization_strength=optimizer.l2_regularization_strength,
        beta=optimizer.beta,
        initial_accumulator_value=optimizer.initial_accumulator_value,
        **common,
    )


_MAKERS = {
    optimizers.SGD: _sgd,
    optimizers.Momentum: _momentum,
    optimizers.Adagrad: _adagrad,
    optimizers.LazyAdam: _adam,
    optimizers.Ftrl: _ftrl,
}
_WHY_NOT = {
    optimizers.RowWiseAdagrad: ": a TPU's Adagrad has an accumulator for each weight, not for each "
    "row; use Adagrad",
    optimizers.CompositeOptimizer: ": feature_configs takes it, and its part for each table",
}


def _rate(optimizer: optimizers.SparseOptimizer, steps: Any) -> Any:
    """A constant learning rate as a number, or a function that computes it in every step."""
    if optimizer.follows_schedule:
        return lambda: optimizer.current_learning_rate(steps)
    return float(optimizer.current_learning_rate())
