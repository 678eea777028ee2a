"""The optimizers of this package as `tf.compat.v1.train.Optimizer`, for graphs of version 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.ops._library import is_native
from twml_ops.optimizers import SparseOptimizer
from twml_ops.optimizers.apply_update import updates_by_kernel

v1: Any = tf.compat.v1

TABLES = "twml_ops_tables"
"""A collection of the graph: pairs of a table whose changed rows are marked, and its slots."""


def as_v1(optimizer: Any) -> Any:
    """An optimizer that trains in the graph of a `model_fn`.

    Args:
        optimizer: one of `twml_ops.optimizers`, which is wrapped in a `GraphOptimizer`, or a
            `tf.compat.v1.train.Optimizer`, which is returned as it is.

    Returns:
        A `tf.compat.v1.train.Optimizer`.

    Raises:
        TypeError: another Keras optimizer. In graphs of version 1 these run without an error but
            do not train anything.
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


def update_dependencies(gradients: Sequence[Any]) -> list[Any]:
    """The tensors and operations that must be computed before a variable may be updated.

    The ops of this package read tables in place, also in the backward pass. In a graph of version 1
    nothing else keeps an update of a table from running before such a read.

    Args:
        gradients: all gradients of a step: `tf.Tensor` or `tf.IndexedSlices`.

    Returns:
        Arguments of `tf.control_dependencies`.
    """
    dependencies: list[Any] = []
    for gradient in gradients:
        if not isinstance(gradient, tf.IndexedSlices):
            dependencies.append(gradient)
        elif (product := ops.sparse_linear_gradient_inputs(gradient)) is not None:
            # A fused update does not need the gradient's op, so only its inputs are waited for.
            dependencies += [product.ids, product.values, product.row_splits, product.grad]
            dependencies += product.control_inputs
        else:
            dependencies += [gradient.values, gradient.indices]
    return dependencies


class GraphOptimizer(v1.train.Optimizer):
    """An optimizer of this package in a graph of version 1: the same updates, with its own slots.

    Updates of sparse gradients are fused unless something modifies the gradient, as in Keras.

    Args:
        optimizer: one of `twml_ops.optimizers`. A learning rate schedule is evaluated at the number
            of updates. Clipping and weight decay work as in Keras.
        name: prefix of the slots' names; by default the name of the optimizer.

    Raises:
        TypeError: `optimizer` is not one of `twml_ops.optimizers`.
        ValueError: `optimizer` has `use_ema`.
    """

    def __init__(self, optimizer: SparseOptimizer, name: str | None = None) -> None:
        if not isinstance(optimizer, SparseOptimizer):
            raise TypeError(
                f"optimizer must be one of twml_ops.optimizers, got {type(optimizer).__name__}"
            )
        if optimizer.use_ema:
            raise ValueError("use_ema is not supported in graphs of version 1, expected False")
        super().__init__(use_locking=False, name=name or optimizer.name)
        self._optimizer = optimizer
        self._step: Any = None
        self._learning_rate: Any = None

    # Overridden methods of TensorFlow -----------------------------------------------------------

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Clips the gradients as the optimizer says, and updates all variables.

        Args:
            grads_and_vars: pairs of gradient and variable, as `compute_gradients` returns them.
            global_step: a variable that is incremented after the update.
            name: the name of the returned operation.

        Returns:
            The operation that applies the gradients.

        Raises:
            ValueError: an option of the optimizer does not support sparse gradients.
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        gradients = [g for g, _ in pairs]
        self._optimizer.check_gradients(gradients)
        clipped = self._optimizer.clip_gradients(gradients)
        pairs = [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]
        with tf.control_dependencies(update_dependencies(clipped)):
            return super().apply_gradients(pairs, global_step, name)

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        first = min(var_list, key=lambda v: v.name)
        self._create_non_slot_variable(tf.constant(0, tf.int64), "iteration", first)
        for variable in var_list:
            for slot in self._optimizer.update_rule.slots(variable.shape, variable.dtype):
                self._get_or_make_slot_with_initializer(
                    variable,
                    v1.constant_initializer(slot.initial_value),
                    tf.TensorShape(slot.shape),
                    slot.dtype,
                    slot.name,
                    f"{self._name}/{slot.name}",
                )

    def _prepare(self) -> None:
        self._step = self._iteration().read_value()
        rate = self._optimizer.learning_rate_argument
        self._learning_rate = tf.cast(rate(self._step) if callable(rate) else rate, tf.float32)

    def _resource_apply_dense(self, gradient: Any, variable: Any) -> Any:
        if updates_by_kernel(gradient, variable):
            return self._update(gradient, variable, self._learning_rate, self._step)

        # A function runs reads and writes in the order of the code; a graph of version 1 does not.
        @tf.function(autograph=False)
        def update(gradient: tf.Tensor, rate: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
            self._update(gradient, variable, rate, step)
            return tf.identity(rate)

        return update(gradient, self._learning_rate, self._step).op

    def _resource_apply_sparse_duplicate_indices(
        self, gradient: Any, variable: Any, indices: Any
    ) -> Any:
        slices = tf.IndexedSlices(gradient, indices)
        return self._update(slices, variable, self._learning_rate, self._step)

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        with tf.control_dependencies(update_ops):
            counted = self._iteration().assign_add(1, read_value=False)
        return tf.group(*update_ops, counted, name=name_scope)

    # Helpers ------------------------------------------------------------------------------------

    def _update(self, gradient: Any, variable: Any, rate: tf.Tensor, step: tf.Tensor) -> Any:
        slots = [self.get_slot(variable, s) for s in self._optimizer.update_rule.slot_names]
        if isinstance(gradient, tf.IndexedSlices) and is_native():
            v1.add_to_collection(TABLES, (variable, slots))
        return self._optimizer.update_variable(
            gradient,
            variable,
            slots,
            rate,
            weight_decay=self._optimizer.weight_decay_of(variable),
            step=step,
        )

    def _iteration(self) -> Any:
        return self._get_non_slot_variable("iteration", graph=v1.get_default_graph())
