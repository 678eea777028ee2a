"""The methods of Keras optimizers that sparse gradients need in another form, for Keras 2 and 3."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import placement
from twml_ops._keras import KERAS_3, is_built
from twml_ops.ops._tape import device_scope_of, tf_variable
from twml_ops.ops.reset_rows import begin_update, dynamic_rows_of
from twml_ops.optimizers._accumulate import Accumulators
from twml_ops.optimizers._moving_average import AVERAGE_SLOTS, CurrentAverages, MovingAverage
from twml_ops.optimizers.gradients import map_values
from twml_ops.optimizers.loss_scale import warn_of_dense_loss_scaling
from twml_ops.optimizers.update_rules import SlotSpec
from twml_ops.placement.device import memory_errors_of
from twml_ops.placement.sharded import NotCheckpointable
from twml_ops.placement.whole_values import assign_whole, show_whole, value_in_file

_SLOTS = "slots"  # in a file, beside the variables
_unscaled: ContextVar[bool] = ContextVar("unscaled", default=False)


class KerasHost(tf.keras.optimizers.Optimizer):
    """The base of `SparseOptimizer`: overrides methods of Keras in terms of its interface."""

    _loss_scale_factor: float | None = None
    _accumulators: Accumulators | None = None

    @property
    def loss_scale_factor(self) -> float | None:
        """Keras 3: the factor of the loss, by which gradients are divided.

        None while `apply` passes divided gradients on to Keras, in the thread that does so: the
        replicas of a strategy have one optimizer and a thread each.
        """
        return None if _unscaled.get() else self._loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: float | None) -> None:
        self._loss_scale_factor = value

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
            ValueError: a table is divided among replicas, and gradients are clipped by norm; or
                the rows of a table are in a file, and `use_ema` is set.
        """
        if getattr(self, "_slots", None) is not None:
            return
        places = [placement.placement_of(v) for v in variables]
        if any(place.splits_gradients for place in places) and (
            self.clipnorm or self.global_clipnorm
        ):
            raise ValueError(
                "clipnorm and global_clipnorm need the norm of a whole table, but with "
                'placement="sharded" each replica has only a part of it; use clipvalue'
            )
        if self.use_ema and any(isinstance(p, placement.TieredPlacement) for p in places):
            raise ValueError(
                "use_ema is not supported for tables with storage=Tiered(...), whose averages "
                "would be as large as the tables: leave use_ema out, or train these tables with "
                "another optimizer of a CompositeOptimizer"
            )
        warn_of_dense_loss_scaling(self)
        with _outside_functions():
            self._create_variables(variables, any(place.is_sharded for place in places))
        with tf.init_scope():
            for v in variables:
                if isinstance(placement.placement_of(v), placement.TieredPlacement):
                    self._attach_slots(v)

    def _create_variables(self, variables: Sequence[Any], sharded: bool) -> None:
        self._build_keras(variables)
        self._built = True
        if sharded:
            self._whole_files_only = NotCheckpointable()
        specs = [(v, self.slot_specs(_on_one_replica(v))) for v in variables]
        self._slots: dict[str, list[Any]] = {
            name: [self._add_slot(v, slots[s]) for v, slots in specs]
            for s, name in enumerate(self.slot_names)
        }

    def _build_keras(self, variables: Sequence[Any]) -> None:
        steps = getattr(self, "gradient_accumulation_steps", None)
        # Otherwise Keras makes a second table of each. Among replicas gradients are dense.
        accumulates = bool(steps) and replicas() == 1
        options: dict[str, Any] = {"use_ema": False}  # The averages are slots.
        if accumulates:
            self._accumulators = Accumulators()
            options["gradient_accumulation_steps"] = None
        with _temporarily(self, **options):
            super().build(variables)

    def save_own_variables(self, store: Any) -> None:
        """Writes the step and the slots to a file, with the whole slots of tables.

        Args:
            store: the group of the file.
        """
        store[_SLOTS] = self._slots_id()
        for i, variable in enumerate(self._variables):
            store[str(i)] = value_in_file(variable)

    def _slots_id(self) -> np.int64:
        """A number for the names of the slots, and for how many numbers they have for a row."""
        specs = self.slot_specs(tf.TensorSpec([2, 3], tf.float32))
        text = " ".join(f"{spec.name} {list(spec.shape)}" for spec in specs)
        return np.int64(zlib.crc32(text.encode()))

    def load_own_variables(self, store: Any) -> None:
        """Reads the step and the slots from a file.

        The state of an optimizer with other slots is left out, with a warning, as in Keras. Earlier
        versions averaged dense variables in each step, so their files have no steps of averages,
        and no number for the slots.

        Args:
            store: the group of the file.
        """
        steps = getattr(self, "_slots", {}).get(AVERAGE_SLOTS[1], ())
        keys = [*store.keys()]
        count = sum(key != _SLOTS for key in keys)
        same = _SLOTS not in keys or int(store[_SLOTS][()]) == self._slots_id()
        if same and self.use_ema and count == len(self._variables) - len(steps):
            saved, new = self._variables[:count], steps
        elif same and count == len(self._variables):
            saved, new = self._variables, ()
        else:
            warnings.warn(
                f"Skipping variable loading for optimizer {self.name!r}: it has "
                f"{len(self._variables)} variables, with the slots {', '.join(self.slot_names)}; "
                f"the file has {count}{'' if same else ', of other slots'}",
                stacklevel=2,
            )
            return
        for i, variable in enumerate(saved):
            assign_whole(variable, store[str(i)][...])
        for variable in new:
            assign_whole(variable, tf.fill(variable.shape, self.average_step()))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> Any:
        """Updates one variable and its slots.

        Args:
            gradient: `tf.Tensor` or `tf.IndexedSlices`.
            variable: one of the variables that the optimizer was built for.
            learning_rate: the learning rate of the step; by default the current one.

        Returns:
            The update's operation in a graph, if it runs a kernel; otherwise None.
        """
        rate = tf.cast(self.learning_rate if learning_rate is None else learning_rate, tf.float32)
        table, slots = tf_variable(variable), self.slots_of(variable)
        dynamic = dynamic_rows_of(table)
        if dynamic is not None:
            begin_update(table, dynamic, slots, [s.initial_value for s in self.slot_specs(table)])
        if self.use_ema:
            step = self.average_step()
            self.average_of(variable).advance(gradient, step, self.ema_momentum, self.concurrency)
        attached = self._attach_slots(variable)
        with tf.control_dependencies([] if attached is None else [attached]):
            return self.update_variable(
                gradient,
                table,
                [s for s, n in zip(slots, self.slot_names, strict=True) if n not in AVERAGE_SLOTS],
                rate,
                weight_decay=self.weight_decay_of(variable),
            )

    def _attach_slots(self, variable: Any) -> Any:
        place = placement.placement_of(variable)
        if place is placement.REPLICATED:
            return None
        values = [float(spec.initial_value) for spec in self.slot_specs(variable)]
        return place.attach_slots(variable, self.slots_of(variable), values)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Keras 3: unscales sparse gradients as sparse ones, then applies all as Keras does.

        Args:
            grads: one for each variable.
            trainable_variables: by default the variables that the optimizer was built for.

        Raises:
            ValueError: see `check_gradients`.
        """
        self.check_gradients(grads)
        scale = self.loss_scale_factor
        if scale is None:
            super().apply(grads, trainable_variables)
            return
        token = _unscaled.set(True)
        try:
            super().apply([map_values(g, lambda t: t / scale) for g in grads], trainable_variables)
        finally:
            _unscaled.reset(token)

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Any) -> None:
        """Keras 3: one update, or with `gradient_accumulation_steps` one step towards it."""
        if self._accumulators is None:
            super()._backend_apply_gradients(grads, trainable_variables)
        else:
            self._accumulate(self._accumulators, grads, trainable_variables)
        if self.use_ema and self.ema_overwrite_frequency:
            tf.__internal__.distribute.interim.maybe_merge_call(
                self._overwrite_if_due, self._distribution_strategy
            )

    def _accumulate(
        self, known: Accumulators, grads: Sequence[Any], trainable_variables: Any
    ) -> None:
        steps = self.gradient_accumulation_steps
        accumulators = [
            known.get(self._index_of(v), v, g)
            for g, v in zip(grads, trainable_variables, strict=True)
        ]
        number = tf.cast(tf.convert_to_tensor(self._iterations) // steps, tf.int64)

        def update() -> None:
            totals = [a.total(g, number) for a, g in zip(accumulators, grads, strict=True)]
            means = self.clip_gradients([map_values(g, lambda t: t / steps) for g in totals])
            self._backend_update_step(means, trainable_variables, self.learning_rate)
            for accumulator in accumulators:
                accumulator.clear()

        def accumulate() -> None:
            for accumulator, g in zip(accumulators, grads, strict=True):
                accumulator.add(g, number)

        tf.cond((tf.convert_to_tensor(self._iterations) + 1) % steps == 0, update, accumulate)

    def skip_step(self) -> None:
        """Counts a step in which no variable has a gradient, with all that follows from the count.

        Keras raises an error in such a step, but a part of a `CompositeOptimizer` may have one.
        """
        if KERAS_3 and self.use_ema and self.ema_overwrite_frequency:
            tf.__internal__.distribute.interim.maybe_merge_call(
                self._overwrite_if_due, self._distribution_strategy
            )
        self._iterations.assign_add(1)

    def _clip_gradients(self, grads: Sequence[Any]) -> list[Any]:
        return self.clip_gradients(grads)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        del variables  # update_step applies it, to the touched rows of a sparse gradient.

    # `update_step` advances the averages, so Keras' pass over all variables has nothing to do.

    def _update_model_variables_moving_average(self, variables: Sequence[Any]) -> None:
        del variables

    def average_of(self, variable: Any) -> MovingAverage:
        """The moving average of a variable, which the option `use_ema` keeps.

        Args:
            variable: one of the variables that the optimizer was built for.

        Returns:
            The average. It has the values of an earlier step; see `averaged_weights`.
        """
        index = self._index_of(variable)
        slots = (tf_variable(self._slots[name][index]) for name in AVERAGE_SLOTS)
        return MovingAverage(tf_variable(variable), *slots)

    def average_step(self, ahead: int = 0) -> tf.Tensor:
        """The number of the current step for `MovingAverage`, which counts like the EMA of Keras.

        In Keras 3 the averages begin with the variables after the first step (with accumulated
        gradients, after the first update), in Keras 2 with those before it.

        Args:
            ahead: 1 for the next step, if the current one has not been counted yet.

        Returns:
            int64 scalar; 0: the averages equal the variables.
        """
        step = tf.cast(tf.convert_to_tensor(self._iterations), tf.int64) + 1 + ahead
        return tf.maximum(step - (self.gradient_accumulation_steps or 1), 0) if KERAS_3 else step

    @property
    def _model_variables_moving_average(self) -> CurrentAverages:
        """Keras 3: the averages before the current step, for the callback `SwapEMAWeights`."""
        if AVERAGE_SLOTS[0] not in getattr(self, "_slots", {}):
            raise AttributeError("the optimizer is not built, or use_ema is not set")
        return CurrentAverages(self._advance_averages)

    def _advance_averages(self) -> list[Any]:
        if any(tf_variable(v).dtype == tf.bfloat16 for v in self._trainable_variables):
            raise ValueError(
                "the SwapEMAWeights of Keras does not support bfloat16 variables; use "
                "twml_ops.optimizers.SwapEMAWeights"
            )
        for variable in self._trainable_variables:
            self._distribution_strategy.extended.update(
                tf_variable(variable), self._advance_average, group=False
            )
        return list(self._slots[AVERAGE_SLOTS[0]])

    def _advance_average(self, variable: Any) -> None:
        average, step = self.average_of(variable), self.average_step()
        average.advance_all(step, self.ema_momentum)
        if step == 0:
            average.values.assign(tf.cast(average.variable, average.values.dtype))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Sets variables to their averages, if `use_ema` is set; `fit` does it at its end.

        Args:
            var_list: the variables that the optimizer was built for, or some of them.
        """
        if self.use_ema and is_built(self):  # Otherwise the averages are the variables.
            self._overwrite(self._distribution_strategy, var_list, self.average_step())

    def _overwrite_if_due(self, strategy: tf.distribute.Strategy) -> None:
        """Keras 3: at the end of a step that has not been counted yet."""
        due = (tf.convert_to_tensor(self.iterations) + 1) % self.ema_overwrite_frequency == 0
        variables, step = self._trainable_variables, self.average_step(ahead=1)
        tf.cond(due, lambda: self._overwrite(strategy, variables, step), lambda: None)

    def _overwrite_model_variables_with_average_value(self, variables: Sequence[Any]) -> None:
        """Keras 2: at the end of a step in which it is due, and that has not been counted yet."""
        if not KERAS_3:  # Keras 3 calls it where replicas cannot meet.
            self._overwrite(self._distribution_strategy, variables, self.average_step(ahead=1))

    def _overwrite(
        self, strategy: tf.distribute.Strategy, variables: Sequence[Any], step: tf.Tensor
    ) -> None:
        def overwrite(variable: Any) -> None:
            average = self.average_of(variable)
            average.advance_all(step, self.ema_momentum)
            average.variable.assign(tf.cast(average.values.value(), average.variable.dtype))

        def overwrite_all() -> None:
            for v in variables:
                strategy.extended.update(tf_variable(v), overwrite, group=False)

        tf.cond(step > 0, overwrite_all, lambda: None)  # At 0 they equal their averages.

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
                slot = self.add_variable(
                    shape=spec.shape,
                    initializer=_filled_with(spec.initial_value),
                    dtype=spec.dtype.name if KERAS_3 else spec.dtype,
                    name=f"{owner.replace('/', '_').replace(':', '_')}_{spec.name}",
                )
            else:
                initial = _filled_with(spec.initial_value)(spec.shape, spec.dtype)
                slot = self.add_variable_from_reference(variable, spec.name, initial_value=initial)
        place = placement.placement_of(variable)
        if place.is_sharded and spec.shape:
            show_whole(slot, place)
        return slot


def _on_one_replica(variable: Any) -> Any:
    """The variable of the first replica, which may have a part of a table."""
    of_tf = tf_variable(variable)
    return getattr(of_tf, "values", (of_tf,))[0]


def _filled_with(value: float) -> Callable[..., tf.Tensor]:
    """An initializer. That of Keras 3 (`Constant`) takes the memory of the variable twice."""
    return lambda shape, dtype: tf.fill(shape, tf.cast(value, dtype))


@contextlib.contextmanager
def _outside_functions() -> Iterator[None]:
    """Where new variables are no part of the `tf.function` that is being traced.

    TensorFlow traces a function that creates variables twice, and so the first step of a training
    whose optimizer is not built before. A strategy creates the variables of its replicas itself.
    """
    if tf.distribute.has_strategy():
        yield
    else:
        with tf.init_scope(), tf.variable_creator_scope(_created_at_once):
            yield


def _created_at_once(create: Callable[..., Any], **options: Any) -> Any:
    return create(**{**options, "experimental_enable_variable_lifting": False})


@contextlib.contextmanager
def _temporarily(owner: Any, **attributes: Any) -> Iterator[None]:
    """Attributes have other values in the block."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def replicas() -> int:
    """The number of replicas of the strategy in scope."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)
