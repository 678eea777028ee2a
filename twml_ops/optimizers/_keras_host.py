"""The methods of Keras optimizers that sparse gradients need in another form, for Keras 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops._keras import KERAS_3
from twml_ops.ops._tape import device_scope_of, tf_variable
from twml_ops.ops.reset_rows import begin_update, dynamic_rows_of
from twml_ops.optimizers._accumulate import Accumulators
from twml_ops.optimizers._gradients import map_values
from twml_ops.optimizers.loss_scale import warn_of_dense_loss_scaling
from twml_ops.optimizers.update_rules import SlotSpec
from twml_ops.placement.device import memory_errors_of


class KerasHost(tf.keras.optimizers.Optimizer):
    """The base of `SparseOptimizer`: overrides methods of Keras in terms of its interface."""

    loss_scale_factor: float | None
    _has_shards = False
    _accumulators: Accumulators | None = None

    def _build_learning_rate(self, learning_rate: Any) -> Any:
        """Keras 2: keeps a schedule in a graph of version 1 as it is.

        Keras would add a variable that is initialized from the step count. In a graph of version 1
        it could be initialized before the step count is, and nothing would read it.
        """
        scheduled = isinstance(learning_rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        if scheduled and not tf.compat.v1.executing_eagerly_outside_functions():
            return learning_rate
        return super()._build_learning_rate(learning_rate)

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots of `variables`.

        Args:
            variables: all that the optimizer will update.

        Raises:
            ValueError: a table is divided among replicas, and gradients are clipped by norm.
        """
        if getattr(self, "_slots", None) is not None:
            return
        self._has_shards = any(placement.placement_of(v).is_sharded for v in variables)
        if self._has_shards and (self.clipnorm or self.global_clipnorm):
            raise ValueError(
                "clipnorm and global_clipnorm need the norm of a whole table, but with "
                'placement="sharded" each replica has only a part of it; use clipvalue'
            )
        warn_of_dense_loss_scaling(self)
        self._build_keras(variables)
        self._built = True
        rule = self.update_rule
        specs = [(v, rule.slots(v.shape, v.dtype)) for v in variables]
        self._slots: dict[str, list[Any]] = {
            name: [self._add_slot(v, slots[s]) for v, slots in specs]
            for s, name in enumerate(rule.slot_names)
        }

    def _build_keras(self, variables: Sequence[Any]) -> None:
        steps = getattr(self, "gradient_accumulation_steps", None)
        if not steps or self.use_ema or replicas() > 1:  # Gradients are dense: Keras accumulates.
            super().build(variables)
            return
        self._accumulators = Accumulators()
        self.gradient_accumulation_steps = None  # Otherwise Keras makes a second table of each.
        try:
            super().build(variables)
        finally:
            self.gradient_accumulation_steps = steps

    def save_own_variables(self, store: Any) -> None:
        """Writes the step and the slots to a file; nothing if a table is divided among replicas.

        A file would have the slots of one replica only. Keras begins with new slots where a file
        has none.

        Args:
            store: the group of the file.
        """
        if not self._has_shards:
            super().save_own_variables(store)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> Any:
        """Updates one variable and its slots.

        Args:
            gradient: `tf.Tensor` or `tf.IndexedSlices`.
            variable: one of those that the optimizer was built for.
            learning_rate: of the step; by default the current one.

        Returns:
            The update's operation in a graph, if it runs a kernel; otherwise None.
        """
        rate = tf.cast(self.learning_rate if learning_rate is None else learning_rate, tf.float32)
        table, slots = tf_variable(variable), self.slots_of(variable)
        dynamic = dynamic_rows_of(table)
        if dynamic is not None:
            specs = self.update_rule.slots(table.shape, table.dtype)
            begin_update(table, dynamic, slots, [spec.initial_value for spec in specs])
        return self.update_variable(
            gradient,
            table,
            slots,
            rate,
            weight_decay=self.weight_decay_of(variable),
        )

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Keras 3: unscales sparse gradients as sparse ones, then applies all as Keras does.

        Args:
            grads: one for each variable.
            trainable_variables: by default those that the optimizer was built for.

        Raises:
            ValueError: see `check_gradients`.
        """
        self.check_gradients(grads)
        scale = self.loss_scale_factor
        if scale is None:
            super().apply(grads, trainable_variables)
            return
        self.loss_scale_factor = None
        try:
            super().apply([map_values(g, lambda t: t / scale) for g in grads], trainable_variables)
        finally:
            self.loss_scale_factor = scale

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Any) -> None:
        """Keras 3: one update, or with `gradient_accumulation_steps` one step towards it."""
        if self._accumulators is None:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        steps = self.gradient_accumulation_steps
        accumulators = [
            self._accumulators.get(self._index_of(v), v, g)
            for g, v in zip(grads, trainable_variables, strict=True)
        ]

        def update() -> None:
            totals = [a.total(g) for a, g in zip(accumulators, grads, strict=True)]
            means = self.clip_gradients([map_values(g, lambda t: t / steps) for g in totals])
            self._backend_update_step(means, trainable_variables, self.learning_rate)
            for accumulator in accumulators:
                accumulator.clear()

        def accumulate() -> None:
            for accumulator, g in zip(accumulators, grads, strict=True):
                accumulator.add(g)

        tf.cond((tf.convert_to_tensor(self._iterations) + 1) % steps == 0, update, accumulate)

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        return self.clip_gradients(grads)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        del variables  # update_step applies it, to the touched rows of a sparse gradient.

    def _deduplicate_sparse_grad(self, grads: Sequence[Any]) -> list[Any]:
        # Keras 2 would sum repeated ids, which the kernel does faster.
        self.check_gradients(grads)
        return list(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        """Keras 3: the gradients of all replicas; see `aggregate_gradients`."""
        return self._reduce_gradients(grads_and_vars, super()._all_reduce_sum_gradients)

    def aggregate_gradients(self, grads_and_vars: Sequence[Any]) -> list[Any]:
        """Keras 2: the gradients of all replicas. Placements of the variables reduce sparse ones.

        Args:
            grads_and_vars: pairs of gradient and variable.

        Returns:
            The pairs, with the sums over all replicas.
        """
        return self._reduce_gradients(grads_and_vars, super().aggregate_gradients)

    def _reduce_gradients(self, grads_and_vars: Sequence[Any], reduce_dense: Any) -> list[Any]:
        pairs = [(g, v) for g, v in grads_and_vars]
        if not placement.in_replica_group():
            return list(reduce_dense(pairs))
        dense = [(g, v) for g, v in pairs if not isinstance(g, tf.IndexedSlices)]
        some = any(g is not None for g, _ in dense)
        reduced = iter(reduce_dense(dense) if some else dense)
        return [
            (placement.placement_of(v).reduce_gradient(g), v)
            if isinstance(g, tf.IndexedSlices)
            else next(reduced)
            for g, v in pairs
        ]

    def _index_of(self, variable: Any) -> int:
        if KERAS_3:
            return int(self._get_variable_index(variable))
        return int(self._index_dict[self._var_key(variable)])

    def _add_slot(self, variable: Any, spec: SlotSpec) -> Any:
        owner = str(getattr(variable, "path", variable.name))  # A tf.Variable has no path.
        what = f"slot {spec.name!r} of {owner!r}"
        with memory_errors_of(what, spec.shape, spec.dtype), device_scope_of(variable):
            if KERAS_3 or spec.dtype != variable.dtype:  # Keras 2 would take the variable's dtype.
                return self.add_variable(
                    shape=spec.shape,
                    initializer=tf.keras.initializers.Constant(spec.initial_value),
                    dtype=spec.dtype.name if KERAS_3 else spec.dtype,
                    name=f"{owner.replace('/', '_').replace(':', '_')}_{spec.name}",
                )
            initial = tf.fill(spec.shape, tf.cast(spec.initial_value, spec.dtype))
            return self.add_variable_from_reference(variable, spec.name, initial_value=initial)


def replicas() -> int:
    """The number of replicas of the strategy in scope."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)
