"""The update rules of the optimizers, independent of Keras: their slots and hyperparameters.

An `UpdateRule` says what a host has to keep beside a variable; `apply_update` updates both. The
hosts are Keras optimizers (`SparseOptimizer`), graphs of version 1
(`twml_ops.estimator.GraphOptimizer`) and parameter servers (`twml_ops.distribute.HybridTrainer`).
The formulas are in cc/core/simd/update_formulas.h for the kernels, and in
twml_ops/ops/stock/update_rules.py for dense variables and stock TensorFlow ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops.stock.update_rules import UPDATE_FORMULAS

__all__ = [
    "AdagradRule",
    "FtrlRule",
    "LazyAdamRule",
    "MomentumRule",
    "RowWiseAdagradRule",
    "SGDRule",
    "SlotSpec",
    "UpdateRule",
]


class SlotSpec(NamedTuple):
    """A variable that a rule keeps beside each variable it updates.

    Attributes:
        name: the name of the slot, unique within the rule.
        shape: the same as the variable's, or one number per row.
        dtype: the same as the variable's; float32 beside a bfloat16 variable.
        initial_value: the value of all elements before the first update.
    """

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType
    initial_value: float


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """How one gradient updates a variable and its slots.

    A subclass names a rule of the kernels (see `twml_ops.core.update_rules`) in `kernel`, declares
    the hyperparameters as fields, and overrides what differs from the defaults. The number of slots
    and hyperparameters follows from the kernel's rule.

    Attributes:
        kernel: the name of the kernels' rule.
    """

    kernel: ClassVar[str]

    def kernel_rule(self, shape: Sequence[int]) -> str:
        """The name of the kernels' rule for a variable.

        Args:
            shape: the shape of the variable.

        Returns:
            A key of `twml_ops.core.update_rules()`.
        """
        del shape
        return self.kernel

    def initial_value(self, slot: str) -> float:
        """The value of all elements of a slot before the first update.

        Args:
            slot: one of `slot_names`.

        Returns:
            A number.
        """
        del slot
        return 0.0

    def step_size(self, learning_rate: tf.Tensor, step: Any) -> tf.Tensor:
        """The learning rate that the kernels take.

        Args:
            learning_rate: float32 scalar, the learning rate of the current step.
            step: integer scalar or variable, the number of updates before this one.

        Returns:
            float32 scalar.
        """
        del step
        return learning_rate

    def own_hyperparameters(self, step_size: tf.Tensor, step: Any) -> Sequence[Any]:
        """The hyperparameters after the learning rate and the decay, in the kernels' order.

        Args:
            step_size: float scalar, the result of `step_size`.
            step: integer scalar or variable, the number of updates before this one.

        Returns:
            Scalar tensors and Python numbers.
        """
        del step_size, step
        return ()

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots, in the kernels' order."""
        return UPDATE_FORMULAS[self.kernel].slots

    def slots(self, shape: Sequence[int], dtype: Any) -> list[SlotSpec]:
        """The slots of a variable.

        Args:
            shape: the shape of the variable.
            dtype: the type of the variable.

        Returns:
            One for each of `slot_names`.
        """
        formula = UPDATE_FORMULAS[self.kernel_rule(shape)]
        shape, dtype = tuple(shape), tf.as_dtype(dtype)
        return [
            SlotSpec(
                name,
                shape[:1] if formula.rowwise_slots else shape,
                tf.float32 if dtype == tf.bfloat16 else dtype,
                self.initial_value(name),
            )
            for name in self.slot_names
        ]

    def hyperparameters(
        self,
        learning_rate: tf.Tensor,
        step: Any,
        weight_decay: float = 0.0,
        dtype: Any = tf.float32,
    ) -> list[Any]:
        """All hyperparameters of the kernels' rule, in its order.

        Args:
            learning_rate: float32 scalar, the learning rate of the current step.
            step: integer scalar or variable, the number of updates before this one.
            weight_decay: a row first loses `learning_rate * weight_decay` times itself.
            dtype: the type of the results that are tensors.

        Returns:
            Scalar tensors and Python numbers.
        """
        decay = learning_rate * weight_decay if weight_decay else 0.0
        size = tf.cast(self.step_size(learning_rate, step), dtype)
        return [size, decay, *self.own_hyperparameters(size, step)]


@dataclasses.dataclass(frozen=True)
class SGDRule(UpdateRule):
    """`w -= learning_rate * g`."""

    kernel: ClassVar[str] = "sgd"


@dataclasses.dataclass(frozen=True)
class MomentumRule(UpdateRule):
    """Momentum, plain or Nesterov's; see `Momentum`.

    Attributes:
        momentum: in [0, 1).
        nesterov: whether to take Nesterov's form.

    Raises:
        ValueError: momentum is out of range.
    """

    kernel: ClassVar[str] = "momentum"
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum!r}")

    def own_hyperparameters(self, step_size: tf.Tensor, step: Any) -> Sequence[Any]:
        """The momentum, and nesterov as 0 or 1."""
        del step_size, step
        return self.momentum, float(self.nesterov)


@dataclasses.dataclass(frozen=True)
class AdagradRule(UpdateRule):
    """Adagrad; see `Adagrad`.

    Attributes:
        initial_accumulator_value: not negative.
        epsilon: positive, or 0 if initial_accumulator_value is positive.

    Raises:
        ValueError: a value is out of range.
    """

    kernel: ClassVar[str] = "adagrad"
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        _check_not_negative("initial_accumulator_value", self.initial_accumulator_value)
        if self.epsilon < 0 or not (self.epsilon or self.initial_accumulator_value):
            raise ValueError(
                "epsilon must be positive, or 0 with a positive initial_accumulator_value (a "
                f"gradient of 0 would be divided by 0), got {self.epsilon!r}"
            )

    def initial_value(self, slot: str) -> float:
        """The initial accumulator value."""
        del slot
        return self.initial_accumulator_value

    def own_hyperparameters(self, step_size: tf.Tensor, step: Any) -> Sequence[Any]:
        """The epsilon."""
        del step_size, step
        return (self.epsilon,)


@dataclasses.dataclass(frozen=True)
class RowWiseAdagradRule(AdagradRule):
    """Adagrad with one accumulator per row of a matrix, and one per element of other variables.

    Attributes:
        initial_accumulator_value: not negative.
        epsilon: positive, or 0 if initial_accumulator_value is positive.

    Raises:
        ValueError: a value is out of range.
    """

    kernel: ClassVar[str] = "rowwise_adagrad"

    def kernel_rule(self, shape: Sequence[int]) -> str:
        """The row-wise rule for a matrix, otherwise the one by element."""
        return self.kernel if len(shape) == 2 else AdagradRule.kernel


@dataclasses.dataclass(frozen=True)
class LazyAdamRule(UpdateRule):
    """Adam that updates only the touched rows; see `LazyAdam`.

    Attributes:
        beta_1: in [0, 1).
        beta_2: in [0, 1).
        epsilon: positive.

    Raises:
        ValueError: a value is out of range.
    """

    kernel: ClassVar[str] = "lazy_adam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        for argument, value in (("beta_1", self.beta_1), ("beta_2", self.beta_2)):
            if not 0 <= value < 1:
                raise ValueError(f"{argument} must be in [0, 1), got {value!r}")
        if not self.epsilon > 0:
            raise ValueError(
                "epsilon must be positive (a gradient of 0 would be divided by 0), got "
                f"{self.epsilon!r}"
            )

    def step_size(self, learning_rate: tf.Tensor, step: Any) -> tf.Tensor:
        """The learning rate with Adam's bias correction."""
        number = tf.convert_to_tensor(step) + 1
        return ops.bias_corrected(learning_rate, number, self.beta_1, self.beta_2)

    def own_hyperparameters(self, step_size: tf.Tensor, step: Any) -> Sequence[Any]:
        """The decays of both moments, and epsilon."""
        del step_size, step
        return self.beta_1, self.beta_2, self.epsilon


@dataclasses.dataclass(frozen=True)
class FtrlRule(UpdateRule):
    """FTRL-proximal; see `Ftrl`.

    Attributes:
        learning_rate_power: not positive.
        initial_accumulator_value: not negative.
        l1_regularization_strength: not negative.
        l2_regularization_strength: not negative.
        l2_shrinkage_regularization_strength: not negative.
        beta: not negative.

    Raises:
        ValueError: a value is out of range.
    """

    kernel: ClassVar[str] = "ftrl"
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.learning_rate_power > 0:
            raise ValueError(
                f"learning_rate_power must not be positive, got {self.learning_rate_power!r}"
            )
        for field in dataclasses.fields(self):
            if field.name != "learning_rate_power":
                _check_not_negative(field.name, getattr(self, field.name))

    def initial_value(self, slot: str) -> float:
        """The initial accumulator value, or 0 for the linear slot."""
        return self.initial_accumulator_value if slot == "accumulator" else 0.0

    def own_hyperparameters(self, step_size: tf.Tensor, step: Any) -> Sequence[Any]:
        """The learning rate's power, L1, L2 with beta's share, and the shrinkage."""
        del step
        beta = tf.math.divide_no_nan(tf.cast(self.beta, step_size.dtype), 2.0 * step_size)
        return (
            self.learning_rate_power,
            self.l1_regularization_strength,
            self.l2_regularization_strength + beta,
            self.l2_shrinkage_regularization_strength,
        )


def _check_not_negative(argument: str, value: float) -> None:
    if value < 0:
        raise ValueError(f"{argument} must not be negative, got {value!r}")
