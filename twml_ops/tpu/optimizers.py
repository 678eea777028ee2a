"""An optimizer of this package as the one that a TPU's embedding tables are updated by."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops import ops, optimizers
from twml_ops.optimizers._base import learning_rate_now

_embedding = tf.tpu.experimental.embedding


def table_optimizer(optimizer: Any) -> Any:
    """The optimizer of `tf.tpu.experimental.embedding` that does what `optimizer` does.

    SGD, Adagrad, LazyAdam and Ftrl have one. A TPU's Adagrad knows no epsilon, and its Adam no bias
    correction: that goes into the learning rate, which is asked for in every step. Schedules are
    asked for the step that `optimizer.iterations` says, which must therefore count: it does where
    `optimizer` updates the dense weights.

    Raises:
        ValueError: `optimizer` has none, or an option that TPU tables do not know.
    """
    for option in ("clipnorm", "global_clipnorm", "weight_decay"):
        if getattr(optimizer, option, None):
            raise ValueError(
                f"{option} is not known to the tables of a TPU, got an optimizer with it"
            )
    clip = getattr(optimizer, "clipvalue", None)
    common = {"clipvalue": clip} if clip else {}
    kind = type(optimizer)
    if kind is optimizers.SGD:
        return _embedding.SGD(_rate(optimizer), **common)
    if kind is optimizers.Adagrad:
        _positive(optimizer.initial_accumulator_value)
        return _embedding.Adagrad(_rate(optimizer), optimizer.initial_accumulator_value, **common)
    if kind is optimizers.LazyAdam:
        return _embedding.Adam(
            lambda: _corrected(optimizer),
            beta_1=optimizer.beta_1,
            beta_2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            lazy_adam=True,
            sum_inside_sqrt=False,
            **common,
        )
    if kind is optimizers.Ftrl:
        config = optimizer.get_config()
        if config["l2_shrinkage_regularization_strength"]:
            raise ValueError("l2_shrinkage_regularization_strength is not known to a TPU's FTRL")
        _positive(config["initial_accumulator_value"])
        names = (
            "learning_rate_power",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "beta",
            "initial_accumulator_value",
        )
        return _embedding.FTRL(_rate(optimizer), **{n: config[n] for n in names}, **common)
    raise ValueError(
        "the tables of a TPU are updated by SGD, Adagrad, LazyAdam or Ftrl of twml_ops.optimizers, "
        f"got {kind.__module__}.{kind.__name__}"
    )


def _rate(optimizer: Any) -> Any:
    """A number if it stays, else what is asked in every step."""
    rate = optimizer._learning_rate
    return (
        (lambda: learning_rate_now(optimizer))
        if callable(rate)
        else float(tf.convert_to_tensor(rate))
    )


def _corrected(optimizer: Any) -> tf.Tensor:
    step = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64) + 1
    return ops.bias_corrected(
        learning_rate_now(optimizer), step, optimizer.beta_1, optimizer.beta_2
    )


def _positive(accumulator: float) -> None:
    if accumulator <= 0:
        raise ValueError(
            "initial_accumulator_value must be positive for the tables of a TPU, which know no "
            f"epsilon, got {accumulator}"
        )
