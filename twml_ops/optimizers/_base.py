"""What the optimizers share: slots, and the choice between sparse and dense updates."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Literal

import tensorflow as tf

from twml_ops import ops, placement
from twml_ops._keras import KERAS_3
from twml_ops.ops._tape import beside, tf_variable
from twml_ops.optimizers._accumulate import Accumulators

_scaled_by_rows: ContextVar[bool] = ContextVar("scaled_by_rows", default=False)


@contextlib.contextmanager
def scaled_by_rows() -> Iterator[None]:
    """Optimizers built in this block have their loss scaled by one that looks at rows only."""
    token = _scaled_by_rows.set(True)
    try:
        yield
    finally:
        _scaled_by_rows.reset(token)


def learning_rate_now(optimizer: Any) -> tf.Tensor:
    """That of the step under way, float32."""
    # Of Keras 2 the property is that of the last update.
    rate = optimizer.learning_rate if KERAS_3 else optimizer._learning_rate
    if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(optimizer.iterations)
    return tf.cast(rate, tf.float32)


class SparseOptimizer(tf.keras.optimizers.Optimizer):
    """A Keras optimizer whose sparse updates cost O(touched rows) and whose dense ones are usual.

    The gradient of a `SparseLinear` kernel (and of anything read with `tf.gather`) is a
    `tf.IndexedSlices`: its rows, and only those, are updated, in one fused pass with the backward
    product where nothing touched the gradient in between. Repeated ids are summed first.

    With sparse gradients `clipnorm`, `clipvalue` and `global_clipnorm` see the summed rows (rows
    without a gradient are zeros to a norm), and `weight_decay` shrinks the touched rows only.
    `use_ema` would need a dense pass over all rows and is refused.

    `gradient_accumulation_steps` (Keras 3) keeps the rows of the gradients of so many steps, and
    updates with their mean: the memory of so many gradients, whatever the size of a table. They are
    not saved: training that goes on from a file between two updates lacks those before it. Among
    replicas it is refused.

    A bfloat16 variable is updated in float32 and stored by stochastic rounding, the same for the
    same `rounding_seed` and step; its slots are float32.

    Args:
        learning_rate: float, or any Keras schedule.
        name: of the optimizer.
        concurrency: "locked": steps that update one table wait for each other. "hogwild": steps run
            from several threads update it at once without locks (Niu et al. 2011, "Hogwild!"): the
            one mode whose results depend on timing, and in which updates of the same row may be
            lost. Dense reads of the table and its slots copy them from then on, and may see some
            rows before and some after a step that runs meanwhile.
        rounding_seed: of the stochastic rounding.
        **kwargs: of the Keras optimizer.
    """

    rule: ClassVar[str]
    slot_names: ClassVar[tuple[str, ...]] = ()
    rowwise_slots: ClassVar[bool] = False
    loss_scale_factor: float | None
    _has_shards = False
    _accumulators: Accumulators | None = None

    def __init__(
        self,
        learning_rate: Any,
        name: str | None,
        concurrency: Literal["locked", "hogwild"] = "locked",
        rounding_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        if concurrency not in ("locked", "hogwild"):
            raise ValueError(f'concurrency must be "locked" or "hogwild", got {concurrency!r}')
        name = name or type(self).__name__
        if KERAS_3:
            super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        else:
            kwargs.pop("is_legacy_optimizer", None)  # Keras 2 writes it into configs
            kwargs["jit_compile"] = False  # the ops are no XLA ops
            super().__init__(name=name, **kwargs)
            self.learning_rate_argument = learning_rate  # for tf.estimator's graphs
            self._learning_rate = self._build_learning_rate(learning_rate)
        self.concurrency = concurrency
        self.rounding_seed = int(rounding_seed)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config["learning_rate"] = (
            config["learning_rate"]
            if KERAS_3
            else self._serialize_hyperparameter(self._learning_rate)
        )
        return {
            **config,
            "concurrency": self.concurrency,
            "rounding_seed": self.rounding_seed,
        }

    # What a rule must say -----------------------------------------------------------------------

    def rule_for(self, shape: Sequence[int]) -> str:
        """The rule by which rows of a variable are updated; its slots have the `slot_shape`."""
        del shape
        return self.rule

    def slot_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a slot of a variable of `shape`."""
        return tuple(shape)

    def _hyper(self, lr: Any) -> list[Any]:
        """The rule's hyperparameters behind learning_rate and decay (cc/core/update_rules.h)."""
        del lr
        return []

    def _effective_learning_rate(self, learning_rate: tf.Tensor) -> tf.Tensor:
        return learning_rate

    def _dense_update(
        self, gradient: tf.Tensor, variable: tf.Variable, slots: Sequence[tf.Variable], lr: Any
    ) -> None:
        raise NotImplementedError

    def _initial_slot(self, name: str) -> float:
        del name
        return 0.0

    # Keras' hooks -------------------------------------------------------------------------------

    def _build_learning_rate(self, learning_rate: Any) -> Any:
        """Of Keras 2, which keeps a schedule's rate in a variable that starts from the step count.

        In a graph of version 1 it could start before the count does, and nobody would read it.
        """
        scheduled = isinstance(learning_rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        if scheduled and not tf.compat.v1.executing_eagerly_outside_functions():
            return learning_rate
        return super()._build_learning_rate(learning_rate)

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots of `variables`."""
        if getattr(self, "_slots", None) is not None:
            return
        self._has_shards = any(placement.of(v).divided for v in variables)
        if self._has_shards and (self.clipnorm or self.global_clipnorm):
            raise ValueError(
                "clipnorm and global_clipnorm do not know the norm of a table with "
                'placement="sharded", of which each replica has a part; use clipvalue'
            )
        self._warn_of_loss_scaling()
        self._build_keras(variables)
        self._built = True
        self._slots: dict[str, list[Any]] = {
            name: [self._add_slot(v, name) for v in variables] for name in self.slot_names
        }

    def _build_keras(self, variables: Sequence[Any]) -> None:
        steps = getattr(self, "gradient_accumulation_steps", None)
        if not steps or self.use_ema or _replicas() > 1:  # dense gradients only: all is Keras'
            super().build(variables)
            return
        self._accumulators = Accumulators()
        self.gradient_accumulation_steps = None  # or Keras makes a second table of each
        try:
            super().build(variables)
        finally:
            self.gradient_accumulation_steps = steps

    def _warn_of_loss_scaling(self) -> None:
        policy = tf.keras.mixed_precision.global_policy().name
        if KERAS_3 and policy == "mixed_float16" and not _scaled_by_rows.get():
            warnings.warn(
                "under mixed_float16 Keras' compile wraps an optimizer in its own "
                "LossScaleOptimizer, which fills tensors as large as the tables at each step, and "
                "outside of fit nothing scales the loss; wrap it yourself: "
                f"twml_ops.optimizers.LossScaleOptimizer({type(self).__name__}(...))",
                stacklevel=3,
            )

    def save_own_variables(self, store: Any) -> None:
        """Writes the step and the slots to a file; nothing if a table is divided among replicas.

        A file would have one replica's slots for all; Keras starts anew where there are none.
        """
        if not self._has_shards:
            super().save_own_variables(store)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> Any:
        """Updates one variable and its slots."""
        lr = tf.cast(self.learning_rate if learning_rate is None else learning_rate, tf.float32)
        index = self._index_of(variable)
        slots = [tf_variable(self._slots[name][index]) for name in self.slot_names]
        return self._update(gradient, tf_variable(variable), slots, lr, self._decays(variable))

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Keras 3: unscales sparse gradients as sparse ones, then applies all as usual."""
        self._refuse_dense_passes(grads)
        scale = self.loss_scale_factor
        if scale is None:
            super().apply(grads, trainable_variables)
            return
        self.loss_scale_factor = None
        try:
            super().apply([_map_values(g, lambda t: t / scale) for g in grads], trainable_variables)
        finally:
            self.loss_scale_factor = scale

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Any) -> None:
        """Keras 3: one update, or with `gradient_accumulation_steps` what leads to one."""
        if self._accumulators is None:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        steps = self.gradient_accumulation_steps
        held = [
            self._accumulators.of(self._index_of(v), v, g)
            for g, v in zip(grads, trainable_variables, strict=True)
        ]

        def update() -> None:
            total = [h.plus(g) for h, g in zip(held, grads, strict=True)]
            mean = self._clip_gradients([_map_values(g, lambda t: t / steps) for g in total])
            self._backend_update_step(mean, trainable_variables, self.learning_rate)
            for h in held:
                h.clear()

        def hold() -> None:
            for h, g in zip(held, grads, strict=True):
                h.hold(g)

        tf.cond((tf.convert_to_tensor(self._iterations) + 1) % steps == 0, update, hold)

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        if not (self.clipnorm or self.clipvalue or self.global_clipnorm):
            return list(grads)
        grads = [summed(g) for g in grads]
        if self.clipnorm:
            limit = self.clipnorm
            return [_map_values(g, lambda t: tf.clip_by_norm(t, limit)) for g in grads]
        if self.clipvalue:
            limit = self.clipvalue
            return [_map_values(g, lambda t: tf.clip_by_value(t, -limit, limit)) for g in grads]
        clipped, _ = tf.clip_by_global_norm(grads, self.global_clipnorm)
        return list(clipped)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        del variables  # update_step does it, for a sparse gradient row by row

    def _deduplicate_sparse_grad(self, grads: Sequence[Any]) -> list[Any]:
        # Keras 2 would do what the kernel does, slower.
        self._refuse_dense_passes(grads)
        return list(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        """Keras 3: the gradients of all replicas; see `aggregate_gradients`."""
        return self._joined(grads_and_vars, super()._all_reduce_sum_gradients)

    def aggregate_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        """Keras 2: the gradients of all replicas; their variables' placements join sparse ones."""
        return self._joined(grads_and_vars, super().aggregate_gradients)

    # What every host of an optimizer calls: Keras, a graph of version 1, parameter servers ------

    def _update(
        self,
        gradient: Any,
        variable: tf.Variable,
        slots: Sequence[tf.Variable],
        lr: tf.Tensor,
        decays: bool,
    ) -> Any:
        """Updates one variable and its slots by a gradient of either kind."""
        if self._updates_rows(gradient, variable):
            return self._sparse_update(gradient, variable, slots, lr, decays)
        if decays:
            variable.assign_sub(variable * tf.cast(lr * self.weight_decay, variable.dtype))
        lr = tf.cast(self._effective_learning_rate(lr), variable.dtype)
        return self._dense_update(tf.cast(gradient, variable.dtype), variable, slots, lr)

    def _updates_rows(self, gradient: Any, variable: Any) -> bool:
        """Whether the kernel updates `variable`; a bfloat16 one always, for it knows to round."""
        return isinstance(gradient, tf.IndexedSlices) or variable.dtype == tf.bfloat16

    def _sparse_update(
        self,
        gradient: Any,
        variable: tf.Variable,
        slots: Sequence[tf.Variable],
        lr: tf.Tensor,
        decays: bool,
    ) -> Any:
        """Updates the rows of one variable and its slots; a dense gradient is that of all rows."""
        if not isinstance(gradient, tf.IndexedSlices):
            gradient = _all_rows(gradient)
        with beside(variable):
            decay = lr * self.weight_decay if decays else 0.0
            hyper = [self._effective_learning_rate(lr), decay, *self._hyper(lr)]
            seed: Any = 0
            if variable.dtype == tf.bfloat16:
                seed = tf.cast(self.iterations, tf.int64) + (self.rounding_seed << 32)
            return ops.apply_rows(
                self.rule_for(variable.shape),
                variable,
                slots,
                gradient,
                hyper,
                seed=seed,
                hogwild=self.concurrency == "hogwild",
            )

    def _slot_type(self, variable: Any) -> tuple[tuple[int, ...], tf.DType]:
        """Shape and type of each slot of `variable`."""
        dtype = tf.as_dtype(variable.dtype)
        shape = self.slot_shape(tuple(variable.shape))
        return shape, tf.float32 if dtype == tf.bfloat16 else dtype

    # Helpers ------------------------------------------------------------------------------------

    def _joined(self, grads_and_vars: Sequence[Any], reduce_dense: Any) -> list[Any]:
        pairs = [(g, v) for g, v in grads_and_vars]
        if not placement.among_replicas():
            return list(reduce_dense(pairs))
        dense = [(g, v) for g, v in pairs if not isinstance(g, tf.IndexedSlices)]
        some = any(g is not None for g, _ in dense)
        reduced = iter(reduce_dense(dense) if some else dense)
        return [
            (placement.of(v).join(g), v) if isinstance(g, tf.IndexedSlices) else next(reduced)
            for g, v in pairs
        ]

    def _decays(self, variable: Any) -> bool:
        return bool(self.weight_decay) and self._use_weight_decay(variable)

    def _index_of(self, variable: Any) -> int:
        if KERAS_3:
            return int(self._get_variable_index(variable))
        return int(self._index_dict[self._var_key(variable)])

    def _add_slot(self, variable: Any, name: str) -> Any:
        with beside(variable):
            return self._make_slot(variable, name)

    def _make_slot(self, variable: Any, name: str) -> Any:
        shape, dtype = self._slot_type(variable)
        value = self._initial_slot(name)
        owner = str(getattr(variable, "path", variable.name))  # a tf.Variable has no path
        own_name = f"{owner.replace('/', '_').replace(':', '_')}_{name}"
        if KERAS_3 or dtype != variable.dtype:  # Keras 2's reference would fix the dtype too
            return self.add_variable(
                shape=shape,
                initializer=tf.keras.initializers.Constant(value),
                dtype=dtype.name if KERAS_3 else dtype,
                name=own_name,
            )
        return self.add_variable_from_reference(
            variable, name, initial_value=tf.fill(shape, tf.cast(value, variable.dtype))
        )

    def _refuse_dense_passes(self, grads: Sequence[Any]) -> None:
        if not any(isinstance(g, tf.IndexedSlices) for g in grads):
            return
        if getattr(self, "use_ema", None):
            raise ValueError(
                "use_ema needs a dense pass over every row of a table at each step, so it is "
                "not supported with sparse gradients; average checkpoints instead"
            )
        if getattr(self, "gradient_accumulation_steps", None) and _replicas() > 1:
            raise ValueError(
                "gradient_accumulation_steps with sparse gradients is not supported among "
                "replicas; use a larger batch instead"
            )


def _replicas() -> int:
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _all_rows(gradient: tf.Tensor) -> tf.IndexedSlices:
    """A dense gradient [N, ...] as that of rows 0 .. N - 1."""
    rows = tf.cast(gradient, tf.float32)
    return tf.IndexedSlices(rows, tf.range(tf.shape(rows, out_type=tf.int64)[0]), tf.shape(rows))


def summed(gradient: Any) -> Any:
    """`gradient`, repeated ids of a sparse one summed."""
    if not isinstance(gradient, tf.IndexedSlices) or ops.is_sparse_linear_gradient(gradient):
        return gradient
    ids, rows = ops.sum_duplicates(gradient.indices, gradient.values)
    return tf.IndexedSlices(rows, ids, gradient.dense_shape)


def _map_values(gradient: Any, fn: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        with beside(gradient.values):
            values = fn(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient if gradient is None else fn(gradient)
