"""The weights that the ops of this package read and update in place, by their handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import KERAS_3, no_autocast
from twml_ops.ops._library import library

if KERAS_3:

    class _Table(tf.keras.Variable):
        """A variable whose value is made on the host, at whatever time Keras makes it.

        In the build of a layer inside a model that is being traced, that is after the build.
        """

        def _initialize(self, value: Any) -> None:
            with library.on_host():
                super()._initialize(value)


def add_table(
    layer: Any,
    name: str,
    shape: Sequence[int],
    initializer: Any,
    dtype: str = "float32",
    trainable: bool = True,
) -> Any:
    """A weight of `layer`, where the ops in force reach it; called in the layer's `build`.

    Args:
        layer: that gets it.
        name: of the weight.
        shape: of it.
        initializer: of Keras, or a function of shape and dtype.
        dtype: of it, which mixed precision does not change.
        trainable: whether it is trained.
    """
    kwargs = {"name": name, "shape": shape, "dtype": dtype, "trainable": trainable}
    if not KERAS_3:
        with library.on_host():
            return layer.add_weight(initializer=initializer, **kwargs, **no_autocast())
    initializer = tf.keras.initializers.get(initializer)
    variable = _Table(initializer=initializer, **kwargs, **no_autocast())
    layer._track_variable(variable)  # as `add_weight` does, which makes variables of one class
    return variable
