"""The optimizers of this package as `tf.compat.v1.train.Optimizer`, for graphs of version 1."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.optimizers._base import SparseOptimizer

v1: Any = tf.compat.v1


def as_v1(optimizer: Any) -> Any:
    """An optimizer that trains in the graph of a `model_fn`.

    Args:
        optimizer: one of `twml_ops.optimizers`, which gets a `GraphOptimizer` around it, or a
            `tf.compat.v1.train.Optimizer`, which comes back as it is.

    Raises:
        TypeError: another Keras optimizer: in graphs of version 1 these run without an error and
            train nothing.
    """
    if isinstance(optimizer, v1.train.Optimizer):
        return optimizer
    if isinstance(optimizer, SparseOptimizer):
        return GraphOptimizer(optimizer)
    raise TypeError(
        "optimizer must be one of twml_ops.optimizers or of tf.compat.v1.train, got "
        f"{type(optimizer).__module__}.{type(optimizer).__qualname__}, which does not train in "
        "the graph of an estimator"
    )


def all_computed(gradients: Sequence[Any]) -> list[Any]:
    """What there is once every gradient is computed: nothing may be updated before.

    The ops of this package read tables in place, also in the backward pass, and in a graph of
    version 1 nothing else keeps an update of a table from overtaking such a read.
    """
    done: list[Any] = []
    for gradient in gradients:
        if not isinstance(gradient, tf.IndexedSlices):
            done.append(gradient)
        elif (product := ops.untouched_sparse_linear_gradient(gradient)) is not None:
            # Its op may be pruned, if the update is fused: what it is computed from will do.
            done += [product.ids, product.values, product.row_splits, product.grad, *product.after]
        else:
            done += [gradient.values, gradient.indices]
    return done


class GraphOptimizer(v1.train.Optimizer):
    """An optimizer of this package in a graph of version 1: the same updates, slots of its own.

    Sparse gradients take the fused path where nothing touched them, as under Keras.

    Args:
        optimizer: one of `twml_ops.optimizers`. A learning rate schedule is followed by the number
            of updates made. Clipping and weight decay work as under Keras.
        name: of the slots; default that of the optimizer.

    Raises:
        TypeError: `optimizer` is none of ours.
    """

    def __init__(self, optimizer: SparseOptimizer, name: str | None = None) -> None:
        if not isinstance(optimizer, SparseOptimizer):
            raise TypeError(
                f"optimizer must be one of twml_ops.optimizers, got {type(optimizer).__name__}"
            )
        super().__init__(use_locking=False, name=name or optimizer.name)
        self._keras = optimizer
        # A copy, whose count of steps is this graph's.
        self._rule = copy.copy(optimizer)
        self._lr: Any = None

    # TensorFlow's hooks -------------------------------------------------------------------------

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> Any:
        """As in `tf.compat.v1.train.Optimizer`, with the clipping of the optimizer inside."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        gradients = [g for g, _ in pairs]
        self._rule._refuse_dense_passes(gradients)
        clipped = self._rule._clip_gradients(gradients)
        pairs = [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]
        with tf.control_dependencies(all_computed(clipped)):
            return super().apply_gradients(pairs, global_step, name)

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        first = min(var_list, key=lambda v: v.name)
        self._create_non_slot_variable(tf.constant(0, tf.int64), "iteration", first)
        for variable in var_list:
            for name in self._rule.slot_names:
                self._make_slot(variable, name)

    def _make_slot(self, variable: Any, name: str) -> None:
        shape, dtype = self._rule._slot_type(variable)
        initial = v1.constant_initializer(self._rule._initial_slot(name))
        self._get_or_make_slot_with_initializer(
            variable, initial, tf.TensorShape(shape), dtype, name, f"{self._name}/{name}"
        )

    def _prepare(self) -> None:
        step = self._iteration().read_value()
        object.__setattr__(self._rule, "_iterations", step)
        rate = self._keras.learning_rate_argument
        rate = rate(step) if callable(rate) else rate
        self._lr = tf.cast(rate, tf.float32)

    def _resource_apply_dense(self, gradient: Any, variable: Any) -> Any:
        slots, decays = self._slots_of(variable), self._rule._decays(variable)
        if self._rule._updates_rows(gradient, variable):
            return self._rule._update(gradient, variable, slots, self._lr, decays)

        # A function orders reads and writes as they are written; a graph of version 1 does not.
        @tf.function(autograph=False)
        def update(gradient: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
            self._rule._update(gradient, variable, slots, rate, decays)
            return tf.identity(rate)

        return update(gradient, self._lr).op

    def _resource_apply_sparse_duplicate_indices(
        self, gradient: Any, variable: Any, indices: Any
    ) -> Any:
        slots, decays = self._slots_of(variable), self._rule._decays(variable)
        slices = tf.IndexedSlices(gradient, indices)
        return self._rule._update(slices, variable, slots, self._lr, decays)

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        with tf.control_dependencies(update_ops):
            counted = self._iteration().assign_add(1, read_value=False)
        return tf.group(*update_ops, counted, name=name_scope)

    # Helpers ------------------------------------------------------------------------------------

    def _iteration(self) -> Any:
        return self._get_non_slot_variable("iteration", graph=v1.get_default_graph())

    def _slots_of(self, variable: Any) -> list[Any]:
        return [self.get_slot(variable, name) for name in self._rule.slot_names]
