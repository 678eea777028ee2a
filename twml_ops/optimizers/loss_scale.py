"""Loss scaling that looks at the rows of a sparse gradient only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import KERAS_3, serializable
from twml_ops.optimizers._base import scaled_by_rows

_Stock: Any = tf.keras.mixed_precision.LossScaleOptimizer

if not KERAS_3:
    LossScaleOptimizer = _Stock  # looks at the rows only
else:

    @serializable
    class LossScaleOptimizer(_Stock):  # type: ignore[no-redef]
        """`keras.optimizers.LossScaleOptimizer` for models with sparse gradients.

        Dynamic loss scaling for `mixed_float16`: `LossScaleOptimizer(LazyAdam(0.01))`. Keras' own
        is right too, but to find an overflow it fills a tensor as large as the table at each step;
        this one looks at the gradient's rows. `compile` leaves it as it is under `mixed_float16`,
        where it would wrap any other optimizer in Keras' own.

        On Keras 2 this name is Keras' own, which looks at the rows already.

        Args:
            inner_optimizer: any optimizer.
            initial_scale: the first factor of the loss.
            dynamic_growth_steps: after so many steps without overflow the factor is doubled.
        """

        def build(self, var_list: Sequence[Any]) -> None:
            """Creates the state of this one and of the inner one."""
            with scaled_by_rows():
                super().build(var_list)

        def check_finite(self, grads: Sequence[Any]) -> tf.Tensor:
            """Whether all gradients are, rows that are not there being zeros."""
            values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
            finite = [tf.reduce_all(tf.math.is_finite(v)) for v in values if v is not None]
            return tf.reduce_all(tf.stack(finite))
