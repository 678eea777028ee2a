"""Adagrad, with an accumulator per element or per row."""

from __future__ import annotations

from typing import Any

from twml_ops._keras import serializable
from twml_ops.optimizers.apply_update import Concurrency
from twml_ops.optimizers.sparse_optimizer import SparseOptimizer
from twml_ops.optimizers.update_rules import AdagradRule, RowWiseAdagradRule


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
        concurrency: "locked", or "hogwild" to update tables without locks; see `SparseOptimizer`.
        rounding_seed: integer seed of the stochastic rounding of bfloat16 variables.
        weight_decay: each step, weights first lose `learning_rate * weight_decay` times themselves;
            of a sparse gradient only its rows.
        clipnorm: limit of each gradient's L2 norm.
        clipvalue: limit of each gradient element's absolute value.
        global_clipnorm: limit of the L2 norm of all gradients together.
        use_ema: whether to keep exponential moving averages of the weights; see `SparseOptimizer`.
        ema_momentum: the momentum of the moving averages, in [0, 1].
        ema_overwrite_frequency: steps after which the averages replace the weights; None: at the
            end of `fit`.
        loss_scale_factor: the loss is multiplied by it, and gradients are divided by it (Keras 3).
        gradient_accumulation_steps: number of steps whose gradients make one update, at least 2
            (Keras 3).
        **kwargs: `jit_compile` and `is_legacy_optimizer` of Keras 2, which its configs have and
            which must be False.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str | None = None,
        *,
        concurrency: Concurrency = "locked",
        rounding_seed: int = 0,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            name,
            concurrency=concurrency,
            rounding_seed=rounding_seed,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            gradient_accumulation_steps=gradient_accumulation_steps,
            **kwargs,
        )
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
        concurrency: "locked", or "hogwild" to update tables without locks; see `SparseOptimizer`.
        rounding_seed: integer seed of the stochastic rounding of bfloat16 variables.
        weight_decay: each step, weights first lose `learning_rate * weight_decay` times themselves;
            of a sparse gradient only its rows.
        clipnorm: limit of each gradient's L2 norm.
        clipvalue: limit of each gradient element's absolute value.
        global_clipnorm: limit of the L2 norm of all gradients together.
        use_ema: whether to keep exponential moving averages of the weights; see `SparseOptimizer`.
        ema_momentum: the momentum of the moving averages, in [0, 1].
        ema_overwrite_frequency: steps after which the averages replace the weights; None: at the
            end of `fit`.
        loss_scale_factor: the loss is multiplied by it, and gradients are divided by it (Keras 3).
        gradient_accumulation_steps: number of steps whose gradients make one update, at least 2
            (Keras 3).
        **kwargs: `jit_compile` and `is_legacy_optimizer` of Keras 2, which its configs have and
            which must be False.

    Raises:
        ValueError: an argument is out of range, or the running Keras does not have an option.
    """

    @property
    def update_rule(self) -> RowWiseAdagradRule:
        """The update rule, with the optimizer's current hyperparameters."""
        return RowWiseAdagradRule(self.initial_accumulator_value, self.epsilon)
