"""Translates an optimizer of this package into the one that updates a TPU's embedding tables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops import optimizers

_embedding = tf.tpu.experimental.embedding


def table_optimizer(optimizer: Any) -> Any:
    """The optimizer of `tf.tpu.experimental.embedding` that does what `optimizer` does.

    SGD, Adagrad, LazyAdam and Ftrl have one. A TPU's Adagrad has no epsilon. Its Adam has no bias
    correction, which therefore becomes part of the learning rate of each step. Schedules are
    evaluated at the step `optimizer.iterations`, which counts only if `optimizer` updates the dense
    weights.

    Args:
        optimizer: one of `twml_ops.optimizers`.

    Returns:
        An optimizer of `tf.tpu.experimental.embedding`.

    Raises:
        ValueError: `optimizer` has no counterpart, or an option that TPU tables do not support.
    """
    for option in ("clipnorm", "global_clipnorm", "weight_decay", "use_ema"):
        if value := getattr(optimizer, option, None):
            raise ValueError(
                f"{option} is not supported by the tables of a TPU, expected an optimizer without "
                f"it, got {option}={value!r}"
            )
    clip = getattr(optimizer, "clipvalue", None)
    common = {"clipvalue": clip} if clip else {}
    kind = type(optimizer)
    if kind is optimizers.SGD:
        return _embedding.SGD(_rate(optimizer), **common)
    if kind is optimizers.Adagrad:
        _check_positive(optimizer.initial_accumulator_value)
        return _embedding.Adagrad(_rate(optimizer), optimizer.initial_accumulator_value, **common)
    if kind is optimizers.LazyAdam:
        return _embedding.Adam(
            lambda: _bias_corrected_rate(optimizer),
            beta_1=optimizer.beta_1,
            beta_2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            lazy_adam=True,
            sum_inside_sqrt=False,
            **common,
        )
    if kind is optimizers.Ftrl:
        if optimizer.l2_shrinkage_regularization_strength:
            raise ValueError(
                "l2_shrinkage_regularization_strength is not supported by a TPU's FTRL, expected "
                f"0, got {optimizer.l2_shrinkage_regularization_strength!r}"
            )
        _check_positive(optimizer.initial_accumulator_value)
        return _embedding.FTRL(
            _rate(optimizer),
            learning_rate_power=optimizer.learning_rate_power,
            l1_regularization_strength=optimizer.l1_regularization_strength,
            l2_regularization_strength=optimizer.l2_regularization_strength,
            beta=optimizer.beta,
            initial_accumulator_value=optimizer.initial_accumulator_value,
            **common,
        )
    raise ValueError(
        "optimizer must be SGD, Adagrad, LazyAdam or Ftrl of twml_ops.optimizers, which the tables "
        f"of a TPU support, got {kind.__module__}.{kind.__name__}"
    )


def _rate(optimizer: optimizers.SparseOptimizer) -> Any:
    """A constant learning rate as a number, or a function that computes it in every step."""
    if optimizer.follows_schedule:
        return optimizer.current_learning_rate
    return float(optimizer.current_learning_rate())


def _bias_corrected_rate(optimizer: optimizers.LazyAdam) -> tf.Tensor:
    return optimizer.update_rule.step_size(
        optimizer.current_learning_rate(), tf.cast(optimizer.iterations, tf.int64)
    )


def _check_positive(accumulator: float) -> None:
    if accumulator <= 0:
        raise ValueError(
            "initial_accumulator_value must be positive for the tables of a TPU, which have no "
            f"epsilon, got {accumulator}"
        )
