"""Creation of the weights that the ops of this package read and update in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import add_weight_in_scope
from twml_ops.ops._library import library


def add_table(
    layer: Any,
    name: str,
    shape: Sequence[int],
    initializer: Any,
    dtype: str = "float32",
    trainable: bool = True,
) -> Any:
    """Adds a weight to `layer` where its placement wants it; for use in the layer's `build`.

    Args:
        layer: The layer.
        name: Name of the weight.
        shape: Its shape.
        initializer: A Keras initializer, or a function of shape and dtype.
        dtype: Its dtype, also under mixed precision.
        trainable: Whether it is trained.

    Returns:
        The weight.
    """
    return add_weight_in_scope(
        layer,
        library.table_scope(),
        initializer=initializer,
        name=name,
        shape=shape,
        dtype=dtype,
        trainable=trainable,
    )


def copied(initializer: Any) -> Any:
    """An initializer that draws other numbers for each weight, unless it has a seed.

    Args:
        initializer: One of Keras, or a function of shape and dtype, which is returned as it is.

    Returns:
        The initializer of one weight.
    """
    if not isinstance(initializer, tf.keras.initializers.Initializer):
        return initializer
    return tf.keras.initializers.get(tf.keras.initializers.serialize(initializer))
