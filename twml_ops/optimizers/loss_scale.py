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
            name: of the optimizer.
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

        def build(self, var_list: Sequence[Any]) -> None:
            """Creates the state of this optimizer and of the inner one.

            Args:
                var_list: the variables that the inner optimizer will update.
            """
            with _scaling_rows():
                super().build(var_list)

        def check_finite(self, grads: Sequence[Any]) -> tf.Tensor:
            """Whether all gradients are finite; rows that a sparse gradient lacks are zeros.

            Args:
                grads: dense, sparse or None.

            Returns:
                bool scalar.
            """
            values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
            finite = [tf.reduce_all(tf.math.is_finite(v)) for v in values if v is not None]
            return tf.reduce_all(tf.stack(finite))


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
