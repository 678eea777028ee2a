"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from typing import Any

from twml_ops._keras import serializable
from twml_ops.optimizers.apply_update import Concurrency
from twml_ops.optimizers.sparse_optimizer import SparseOptimizer
from twml_ops.optimizers.update_rules import MomentumRule, SGDRule


@serializable
class SGD(SparseOptimizer):
    """Stochastic gradient descent: `w -= learning_rate * g` (Robbins & Monro 1951).

    Args:
        learning_rate: float, or any Keras schedule.
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
        learning_rate: Any = 0.01,
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
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
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
