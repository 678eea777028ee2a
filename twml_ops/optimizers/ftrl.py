"""FTRL-proximal, which sets the weights of rare features to exactly zero."""

from __future__ import annotations

from typing import Any

from twml_ops._keras import serializable
from twml_ops.optimizers.apply_update import Concurrency
from twml_ops.optimizers.sparse_optimizer import SparseOptimizer
from twml_ops.optimizers.update_rules import FtrlRule


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
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
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
