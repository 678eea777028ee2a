"""Loss scaling that checks only the rows of a sparse gradient."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from twml_ops._keras import KERAS_3, serializable

_Stock: Any = tf.keras.mixed_precision.LossScaleOptimizer
_scales_rows: ContextVar[bool] = ContextVar("scales_rows", default=False)

if not KERAS_3:
    LossScaleOptimizer = _Stock  # Keras 2 checks only the rows.
else:

    @serializable
    class LossScaleOptimizer(_Stock):  # type: ignore[no-redef]
        """`keras.optimizers.LossScaleOptimizer` for models with sparse gradients.

        Dynamic loss scaling for `mixed_float16` (Micikevicius et al. 2018, "Mixed Precision
        Training"): `LossScaleOptimizer(LazyAdam(0.01))`. Keras' own class is correct too, but to
        find an overflow it fills a tensor as large as the table at each step. This one checks the
        gradient's rows. `compile` leaves it as it is under `mixed_float16`, where it would wrap any
        other optimizer in Keras' own class.

        In Keras 2 this name is Keras' own class, which checks only the rows.

        Args:
            inner_optimizer: any optimizer.
            initial_scale: the first factor of the loss.
            dynamic_growth_steps: number of steps without overflow after which the factor is
                doubled.
            name: the name of the optimizer.
            **kwargs: arguments that Keras accepts from configs of earlier versions.
        """

        def __init__(
            self,
            inner_optimizer: Any,
            initial_scale: float = 2.0**15,
            dynamic_growth_steps: int = 2000,
            name: str | None = None,
            **kwargs: Any,
        ) -> None:
            super().__init__(
                inner_optimizer,
                initial_scale=initial_scale,
                dynamic_growth_steps=dynamic_growth_steps,
                name=name,
                **kwargs,
            )

        @property
        def optimizers(self) -> Any:
            """Those of a `CompositeOptimizer`, whose learning rates callbacks of Keras set."""
            return self.inner_optimizer.optimizers

        def build(self, var_list: Sequence[Any]) -> None:
            """Creates the state of this optimizer and of the inner one.

            Args:
                var_list: the variables that the inner optimizer will update.
            """
            with _scaling_rows():
                super().build(var_list)

        def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
            """Excludes variables from the weight decay of the inner optimizer.

            Args:
                var_list: variables.
                var_names: texts that occur in the names of variables.

            Raises:
                ValueError: the inner optimizer is built.
            """
            self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

        def check_finite(self, grads: Sequence[Any]) -> tf.Tensor:
            """Whether all gradients are finite, on all replicas.

            Rows that a sparse gradient lacks are zeros.

            Args:
                grads: dense, sparse or None.

            Returns:
                bool scalar.
            """
            return are_finite(grads)

        def save_own_variables(self, store: Any) -> None:
            """Writes the scale to a file, to which Keras also writes the inner optimizer.

            Args:
                store: the group of the file.
            """
            for i, variable in enumerate(self._variables):
                store[str(i)] = variable.numpy()

        def load_own_variables(self, store: Any) -> None:
            """Reads the scale; files of Keras' class have the inner optimizer here, too.

            Args:
                store: the group of the file.
            """
            if len(store.keys()) != len(self._variables):
                super().load_own_variables(store)
                return
            for i, variable in enumerate(self._variables):
                variable.assign(store[str(i)])


def are_finite(grads: Sequence[Any]) -> tf.Tensor:
    """Whether the gradients of all replicas are finite.

    Args:
        grads: dense, sparse or None; of the calling replica.

    Returns:
        bool scalar, the same on all replicas.
    """
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
    finite = [tf.reduce_all(tf.math.is_finite(v)) for v in values if v is not None]
    every = tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return every
    failed = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(~every, tf.int32))
    return tf.equal(failed, 0)


def apply_if_finite(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Keras 3: a step of a built optimizer, if all gradients are finite; otherwise nothing.

    Args:
        optimizer: the optimizer.
        grads: dense, sparse or None, on each replica.
        variables: one for each gradient.
    """

    def apply(grads: Sequence[Any], variables: Sequence[Any]) -> None:
        optimizer.apply(grads, variables)

    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        tf.cond(are_finite(grads), lambda: apply(grads, variables), lambda: None)
        return

    def across(strategy: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        # A condition in which replicas meet has to be outside of them.
        run = strategy.extended.call_for_each_replica
        of_replicas = strategy.experimental_local_results(run(are_finite, args=(grads,)))
        tf.cond(of_replicas[0], lambda: run(apply, args=(grads, variables)), lambda: None)

    tf.distribute.get_replica_context().merge_call(across, args=(grads, variables))


@contextlib.contextmanager
def _scaling_rows() -> Iterator[None]:
    """Optimizers that are built in this block have a `LossScaleOptimizer` of this package."""
    token = _scales_rows.set(True)
    try:
        yield
    finally:
        _scales_rows.reset(token)


def warn_of_dense_loss_scaling(optimizer: Any) -> None:
    """Warns if Keras 3 scales the loss of `optimizer`, which is being built, by dense passes."""
    policy = tf.keras.mixed_precision.global_policy().name
    if KERAS_3 and policy == "mixed_float16" and not _scales_rows.get():
        warnings.warn(
            "under mixed_float16 Keras' compile wraps an optimizer in its own "
            "LossScaleOptimizer, which fills tensors as large as the tables at each step, and "
            "outside of fit nothing scales the loss; wrap it yourself: "
            f"twml_ops.optimizers.LossScaleOptimizer({type(optimizer).__name__}(...))",
            stacklevel=3,
        )
