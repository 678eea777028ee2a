"""The Keras optimizer that all optimizers of this package derive from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import tensorflow as tf

from twml_ops._keras import KERAS_3
from twml_ops.ops._tape import tf_variable
from twml_ops.optimizers._keras_host import KerasHost, replicas
from twml_ops.optimizers._moving_average import AVERAGE_SLOTS, average_slots
from twml_ops.optimizers.apply_update import Concurrency, apply_update
from twml_ops.optimizers.gradients import clip
from twml_ops.optimizers.keras_options import check_other_options, initialize_keras
from twml_ops.optimizers.update_rules import SlotSpec, UpdateRule


class OptimizerOptions(TypedDict, total=False):
    """The options that all optimizers have, as keywords; `SparseOptimizer` explains them."""

    concurrency: Concurrency
    rounding_seed: int
    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    jit_compile: bool
    is_legacy_optimizer: bool


class SparseOptimizer(KerasHost):
    """The base class of this package's optimizers: sparse updates cost O(touched rows).

    The gradient of a `SparseLinear` kernel (and of anything read with `tf.gather`) is a
    `tf.IndexedSlices`. Only its rows are updated, in one pass that is fused with the backward
    product unless something modifies the gradient in between. Repeated ids are summed first. Dense
    gradients are updated as in Keras.

    With sparse gradients, clipping sees the summed rows: rows without a gradient count as zeros.
    `weight_decay` shrinks the touched rows only.

    `use_ema` keeps an exponential moving average of every weight over all steps, as in Keras, at
    the cost of the touched rows (`ops.average_rows`). It takes the memory of a second table and 8
    bytes a row. `fit` ends with the averages in the model; before that, `averaged_weights` and
    `SwapEMAWeights` put them there for an evaluation, an export or a file.
    `ema_overwrite_frequency` writes all rows in each of its steps. A table must not be assigned to
    between two steps: a row that has been trained would count as if it had had the new value since
    its last update.

    `gradient_accumulation_steps` keeps the rows of the gradients of so many steps and updates with
    their mean. It costs the memory of these gradients, whatever the size of a table. They are not
    saved: a file that is written between two updates lacks the steps since the last one. It is
    refused with sparse gradients among replicas.

    A bfloat16 variable is updated in float32 and stored by stochastic rounding, which is the same
    for the same `rounding_seed` and step. Its slots are float32.

    Keras 2 and Keras 3 differ in their options: `loss_scale_factor` and
    `gradient_accumulation_steps` exist in Keras 3 only. `jit_compile` of Keras 2 must be False,
    since XLA does not know the kernels.

    To write an optimizer of your own, derive from this class and define `update_rule`: either a
    rule of `twml_ops.optimizers.update_rules`, or a subclass of `UpdateRule` with a kernel of
    `twml_ops.core.update_rules()` and hyperparameters of your own. For example, Adagrad whose
    epsilon falls over time:

        @dataclasses.dataclass(frozen=True)
        class FallingEpsilonRule(AdagradRule):
            def own_hyperparameters(self, step_size, step):
                return (self.epsilon / (1.0 + tf.cast(step, step_size.dtype)),)

        @tf.keras.utils.register_keras_serializable("mine")
        class FallingEpsilon(SparseOptimizer):
            def __init__(self, learning_rate=0.1, name=None, **options):
                super().__init__(learning_rate, name, **options)

            @property
            def update_rule(self):
                return FallingEpsilonRule(epsilon=1.0)

    A formula that no kernel has needs a new entry in cc/core/update_rules.h and in
    twml_ops/ops/stock/update_rules.py.

    Args:
        learning_rate: float, or any Keras schedule.
        name: the name of the optimizer; by default that of the class.
        concurrency: "locked": steps that update the same table wait for each other. "hogwild":
            steps that run in several threads update it at the same time without locks (Niu et al.
            2011, "Hogwild!"). This is the only mode whose results depend on timing, and in which
            updates of the same row may be lost. Dense reads of the table and its slots then copy
            them, and may see some rows before and some after a concurrent step.
        rounding_seed: integer seed of the stochastic rounding of bfloat16 variables.
        weight_decay: each step, weights first lose `learning_rate * weight_decay` times themselves.
        clipnorm: limit of each gradient's L2 norm.
        clipvalue: limit of each gradient element's absolute value.
        global_clipnorm: limit of the L2 norm of all gradients together.
        use_ema: whether to keep exponential moving averages of the weights.
        ema_momentum: the momentum of the moving averages, in [0, 1].
        ema_overwrite_frequency: steps after which the averages replace the weights; None: at the
            end of `fit`.
        loss_scale_factor: the loss is multiplied by it, and gradients are divided by it (Keras 3).
        gradient_accumulation_steps: number of steps whose gradients make one update, at least 2
            (Keras 3).
        **kwargs: `jit_compile` and `is_legacy_optimizer` of Keras 2, which its configs have and
            which must be False.

    Raises:
        TypeError: there is no such option; the message names the one that was probably meant.
        ValueError: an argument is out of range, two kinds of clipping are given, or the running
            Keras does not have an option.
    """

    def __init__(
        self,
        learning_rate: Any,
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
        check_other_options(type(self), kwargs)
        if concurrency not in ("locked", "hogwild"):
            raise ValueError(f'concurrency must be "locked" or "hogwild", got {concurrency!r}')
        initialize_keras(
            *(self, super().__init__, learning_rate),
            loss_scale_factor=loss_scale_factor,
            gradient_accumulation_steps=gradient_accumulation_steps,
            name=name or type(self).__name__,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
        )
        self.learning_rate_argument = learning_rate
        self.concurrency = concurrency
        self.rounding_seed = int(rounding_seed)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        if not KERAS_3:
            config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
        return {
            **config,
            "concurrency": self.concurrency,
            "rounding_seed": self.rounding_seed,
        }

    # The interface of the hosts: Keras, graphs of version 1, parameter servers, TPU tables -------

    @property
    def update_rule(self) -> UpdateRule:
        """The update rule, with the optimizer's current hyperparameters."""
        raise NotImplementedError(f"{type(self).__name__} must define the property update_rule")

    @property
    def follows_schedule(self) -> bool:
        """Whether the learning rate changes from step to step by itself."""
        return callable(self._learning_rate)

    def current_learning_rate(self, step: Any = None) -> tf.Tensor:
        """The learning rate of the current step.

        Args:
            step: the number of steps before it, for a host that counts them; None: `iterations`.

        Returns:
            float32 scalar.
        """
        # In Keras 2 the property is the learning rate of the last update.
        schedule = tf.keras.optimizers.schedules.LearningRateSchedule
        if isinstance(self._learning_rate, schedule):
            rate = self._learning_rate(self.iterations if step is None else step)
        else:
            rate = self.learning_rate if KERAS_3 else self._learning_rate
        return tf.cast(rate, tf.float32)

    def check_gradients(self, gradients: Sequence[Any]) -> None:
        """Refuses sparse gradients where an option needs dense ones.

        Args:
            gradients: the gradients of one step.

        Raises:
            ValueError: an option needs a dense pass over a table.
        """
        if not any(isinstance(g, tf.IndexedSlices) for g in gradients):
            return
        if getattr(self, "gradient_accumulation_steps", None) and replicas() > 1:
            raise ValueError(
                "gradient_accumulation_steps with sparse gradients is not supported among "
                "replicas; use a larger batch instead"
            )

    def clip_gradients(self, gradients: Sequence[Any], norm: tf.Tensor | None = None) -> list[Any]:
        """The gradients, clipped as the constructor's arguments say.

        Args:
            gradients: the gradients of one step: `tf.Tensor`, `tf.IndexedSlices` or None.
            norm: float32 scalar, the L2 norm that `clipnorm` or `global_clipnorm` limits, for a
                host that has not all gradients in one place; None: the norm of `gradients`.

        Returns:
            One for each gradient; sparse ones have unique ids if they are clipped without `norm`.
        """
        return clip(gradients, self.clipnorm, self.clipvalue, self.global_clipnorm, norm)

    def weight_decay_of(self, variable: Any) -> float:
        """The weight decay of a variable.

        Args:
            variable: one that is trained.

        Returns:
            The constructor's `weight_decay`; 0 if it is None or the variable is excluded from it.
        """
        if not self.weight_decay or not self._use_weight_decay(variable):
            return 0.0
        return float(self.weight_decay)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of all slots of `update_rule`, and with `use_ema` of the averages."""
        names = self.update_rule.slot_names
        average, step = AVERAGE_SLOTS
        # In this order a file of an earlier version, which has no steps, is the beginning of one.
        return (average, *names, step) if self.use_ema else names

    def slot_specs(self, variable: Any) -> list[SlotSpec]:
        """The slots that a variable gets.

        Args:
            variable: or anything else with a shape and a dtype.

        Returns:
            One for each of `slot_names`.
        """
        specs = self.update_rule.slots(variable.shape, variable.dtype)
        if not self.use_ema:
            return specs
        average, step = average_slots(variable.shape, variable.dtype)
        return [average, *specs, step]

    def slots_of(self, variable: Any) -> list[tf.Variable]:
        """The slots that the optimizer keeps for a variable.

        Args:
            variable: one of the variables that the optimizer was built for.

        Returns:
            One for each of `slot_names`.
        """
        index = self._index_of(variable)
        return [tf_variable(self._slots[name][index]) for name in self.slot_names]

    def update_variable(
        self,
        gradient: Any,
        variable: Any,
        slots: Sequence[Any],
        learning_rate: tf.Tensor,
        *,
        weight_decay: float,
        step: Any = None,
    ) -> Any:
        """Updates one variable and its slots, wherever the host keeps them.

        Args:
            gradient: `tf.Tensor` or `tf.IndexedSlices`, already clipped.
            variable: to update.
            slots: the slots of the variable, as `update_rule.slots` describes them.
            learning_rate: float32 scalar, the learning rate of the current step.
            weight_decay: the weight decay of the variable; see `weight_decay_of`.
            step: integer scalar or variable, the number of updates before this one; by default the
                optimizer's own count.

        Returns:
            The update's operation in a graph, if it runs a kernel; otherwise None.
        """
        return apply_update(
            self.update_rule,
            gradient,
            variable,
            slots,
            learning_rate,
            self.iterations if step is None else step,
            weight_decay=weight_decay,
            concurrency=self.concurrency,
            rounding_seed=self.rounding_seed,
        )
