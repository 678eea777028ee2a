"""Learning-rate schedules for large batches."""

from __future__ import annotations

import math
from typing import Any, Literal

import tensorflow as tf

from twml_ops._keras import serializable


@serializable
class LinearScalingWarmup(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Scales a learning rate that was chosen for small batches to batches k times as large.

    Goyal et al. 2017, "Accurate, Large Minibatch SGD": a batch k times as large takes a learning
    rate k times as large, which is reached in equal steps from the unscaled one, since a network
    does not tolerate a large rate in its first steps:
    `learning_rate(step) * (1 + (k - 1) * min(step / warmup_steps, 1))`.

    Args:
        learning_rate: for `base_batch_size`: float, or any Keras schedule.
        batch_size: number of examples in a step of all replicas together, positive.
        base_batch_size: the batch size that `learning_rate` was chosen for, positive.
        warmup_steps: number of steps until the rate is fully scaled, not negative; 0: the first
            step has the scaled rate. The paper uses five passes over the data.
        scaling: "linear": k = batch_size / base_batch_size. "sqrt": the square root of that, which
            suits Adagrad and Adam, whose steps do not grow with the gradient (Krizhevsky 2014, "One
            weird trick for parallelizing convolutional neural networks").
        name: the name of the schedule.

    Raises:
        ValueError: an argument is out of range, or the scaling is unknown.
    """

    def __init__(
        self,
        learning_rate: Any,
        batch_size: int,
        base_batch_size: int = 256,
        warmup_steps: int = 0,
        scaling: Literal["linear", "sqrt"] = "linear",
        name: str = "LinearScalingWarmup",
    ) -> None:
        super().__init__()
        for argument, value in (("batch_size", batch_size), ("base_batch_size", base_batch_size)):
            if value < 1:
                raise ValueError(f"{argument} must be positive, got {value!r}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps!r}")
        if scaling not in ("linear", "sqrt"):
            raise ValueError(f'scaling must be "linear" or "sqrt", got {scaling!r}')
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.base_batch_size = base_batch_size
        self.warmup_steps = warmup_steps
        self.scaling = scaling
        self.name = name

    @property
    def factor(self) -> float:
        """k, the factor of the learning rate after the warm-up."""
        k = self.batch_size / self.base_batch_size
        return k if self.scaling == "linear" else math.sqrt(k)

    def __call__(self, step: Any) -> tf.Tensor:
        """The learning rate of a step.

        Args:
            step: integer scalar, from 0.

        Returns:
            float32 scalar.
        """
        rate = self.learning_rate
        rate = tf.cast(rate(step) if callable(rate) else rate, tf.float32)
        if not self.warmup_steps:
            return rate * self.factor
        progress = tf.minimum(tf.cast(step, tf.float32) / self.warmup_steps, 1.0)
        return rate * (1.0 + (self.factor - 1.0) * progress)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        rate = self.learning_rate
        return {
            "learning_rate": tf.keras.optimizers.schedules.serialize(rate)
            if callable(rate)
            else rate,
            "batch_size": self.batch_size,
            "base_batch_size": self.base_batch_size,
            "warmup_steps": self.warmup_steps,
            "scaling": self.scaling,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LinearScalingWarmup:
        """The schedule that `get_config` described.

        Args:
            config: of `get_config`.
        """
        rate = config["learning_rate"]
        if isinstance(rate, dict):
            rate = tf.keras.optimizers.schedules.deserialize(rate)
        return cls(**{**config, "learning_rate": rate})
