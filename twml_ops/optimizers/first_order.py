"""The first-order optimizers: SGD, Momentum, Adagrad, row-wise Adagrad, LazyAdam and FTRL.

All of them take the options of `SparseOptimizer`, which their configs contain as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twml_ops._keras import serializable
from twml_ops.optimizers.sparse_optimizer import OptimizerOptions, SparseOptimizer
from twml_ops.optimizers.update_rules import (
    AdagradRule,
    FtrlRule,
    LazyAdamRule,
    MomentumRule,
    RowWiseAdagradRule,
    SGDRule,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


@serializable
class SGD(SparseOptimizer):
    """Stochastic gradient descent: `w -= learning_rate * g` (Robbins & Monro 1951).

    Args:
        learning_rate: float, or any Keras schedule.
        name: the name of the optimizer; by default that of the class.
        **options: the options of all optimizers; see `SparseOptimizer`.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        name: str | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, name, **options)

    @property
    def update_rule(self) -> SGDRule:
        """The update rule, with the optimizer's current hyperparameters."""
        return SGDRule()


@serializable
class Momentum(SparseOptimizer):
    """Gradient descent with momentum (Polyak 1964), in Keras' form.

    `m = momentum * m - learning_rate * g; w += m`. In Nesterov's form (Sutskever et al. 2013, "On
    the importance of initialization and momentum in deep learning") the second step is
    `w += momentum * m - learning_rate * g`.

    Sparse gradients move the touched rows only: a row without a gradient keeps both w and m,
    whereas dense momentum would continue to move it.

    Args:
        learning_rate: float, or any Keras schedule.
        momentum: share of the last step that each step repeats, in [0, 1).
        nesterov: whether to use Nesterov's form.
        name: the name of the optimizer; by default that of the class.
        **options: the options of all optimizers; see `SparseOptimizer`.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        name: str | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, name, **options)
        self.momentum = momentum
        self.nesterov = nesterov
        _ = self.update_rule  # Checks the arguments.

    @property
    def update_rule(self) -> MomentumRule:
        """The update rule, with the optimizer's current hyperparameters."""
        return MomentumRule(self.momentum, self.nesterov)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "momentum": self.momentum, "nesterov": self.nesterov}


@serializable
class Adagrad(SparseOptimizer):
    """Adagrad: `a += g^2; w -= learning_rate * g / sqrt(a + epsilon)`, for each element.

    Duchi, Hazan & Singer 2011, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization", in Keras' form.

    Args:
        learning_rate: float, or any Keras schedule.
        initial_accumulator_value: a before the first step, not negative.
        epsilon: added to a, so that the root is not 0. It may be 0 if initial_accumulator_value is
            positive.
        name: the name of the optimizer; by default that of the class.
        **options: the options of all optimizers; see `SparseOptimizer`.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, name, **options)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon
        _ = self.update_rule  # Checks the arguments.

    @property
    def update_rule(self) -> AdagradRule:
        """The update rule, with the optimizer's current hyperparameters."""
        return AdagradRule(self.initial_accumulator_value, self.epsilon)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


@serializable
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator per row, `a += mean(g^2)`: D times less memory for D columns.

    The rule that Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and
    Recommendation Systems", use for embedding tables. Variables that are not matrices keep one
    accumulator per element.

    Args:
        learning_rate: float, or any Keras schedule.
        initial_accumulator_value: a before the first step, not negative.
        epsilon: added to a, so that the root is not 0. It may be 0 if initial_accumulator_value is
            positive.
        name: the name of the optimizer; by default that of the class.
        **options: the options of all optimizers; see `SparseOptimizer`.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

    @property
    def update_rule(self) -> RowWiseAdagradRule:
        """The update rule, with the optimizer's current hyperparameters."""
        return RowWiseAdagradRule(self.initial_accumulator_value, self.epsilon)


@serializable
class LazyAdam(SparseOptimizer):
    """Adam (Kingma & Ba 2015); rows without a gradient keep weights, m and v bit for bit.

    `m += (1 - beta_1) * (g - m); v += (1 - beta_2) * (g^2 - v)`, then
    `w -= rate * m / (sqrt(v) + epsilon)` with the bias-corrected learning rate
    `rate = learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)`. t is the global step, not a row's
    own number of updates. Dense gradients are updated as by Keras' Adam.

    Args:
        learning_rate: float, or any Keras schedule.
        beta_1: decay of the first moment m, in [0, 1).
        beta_2: decay of the second moment v, in [0, 1).
        epsilon: added to the root of the second moment, positive.
        name: the name of the optimizer; by default that of the class.
        **options: the options of all optimizers; see `SparseOptimizer`.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, name, **options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        _ = self.update_rule  # Checks the arguments.

    @property
    def update_rule(self) -> LazyAdamRule:
        """The update rule, with the optimizer's current hyperparameters."""
        return LazyAdamRule(self.beta_1, self.beta_2, self.epsilon)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }


@serializable
class Ftrl(SparseOptimizer):
    """FTRL-proximal with L1 and L2, in Keras' form.

    McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches". With p the
    learning_rate_power, `s = a + g^2; z += g + 2 shrinkage w - (s^-p - a^-p) / learning_rate * w;
    w = (clip(z, -l1, l1) - z) / (s^-p / learning_rate + 2 l2); a = s`.

    A learning rate of 0, as at the end of a schedule, leaves the touched rows and their slots as
    they are (except for `weight_decay`): z is divided by the rate, so there is no step to take. The
    formula assumes a constant rate: where a schedule lowers it, the weights of touched rows shrink
    with it, as they do in Keras.

    Args:
        learning_rate: float, or any Keras schedule.
        learning_rate_power: p, not positive; -0.5 divides by the square root.
        initial_accumulator_value: a before the first step, not negative.
        l1_regularization_strength: L1, not negative; the weights of rare features become exactly 0.
        l2_regularization_strength: L2, not negative.
        l2_shrinkage_regularization_strength: L2 that is added to the gradient only, not negative.
        beta: the beta of the paper's learning rate, `alpha / (beta + sqrt(sum of g^2))`, not
            negative.
        name: the name of the optimizer; by default that of the class.
        **options: the options of all optimizers; see `SparseOptimizer`.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

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
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, name, **options)
        self.learning_rate_power = learning_rate_power
        self.initial_accumulator_value = initial_accumulator_value
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self.beta = beta
        _ = self.update_rule  # Checks the arguments.

    @property
    def update_rule(self) -> FtrlRule:
        """The update rule, with the optimizer's current hyperparameters."""
        return FtrlRule(
            self.learning_rate_power,
            self.initial_accumulator_value,
            self.l1_regularization_strength,
            self.l2_regularization_strength,
            self.l2_shrinkage_regularization_strength,
            self.beta,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "learning_rate_power": self.learning_rate_power,
            "initial_accumulator_value": self.initial_accumulator_value,
            "l1_regularization_strength": self.l1_regularization_strength,
            "l2_regularization_strength": self.l2_regularization_strength,
            "l2_shrinkage_regularization_strength": self.l2_shrinkage_regularization_strength,
            "beta": self.beta,
        }
