"""Adam that updates only the rows with a gradient."""

from __future__ import annotations

from typing import Any

from twml_ops._keras import serializable
from twml_ops.optimizers.apply_update import Concurrency
from twml_ops.optimizers.sparse_optimizer import SparseOptimizer
from twml_ops.optimizers.update_rules import LazyAdamRule


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
        beta_1: float = 0.9,
        beta_2: float = 0.999,
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
