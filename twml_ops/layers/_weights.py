"""The weights that the ops of this package read and update in place, by their handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """A weight of `layer`, where the ops in force reach it; called in the layer's `build`.

    Args:
        layer: that gets it.
        name: of the weight.
        shape: of it.
        initializer: of Keras, or a function of shape and dtype.
        dtype: of it, which mixed precision does not change.
        trainable: whether it is trained.
    """
    return add_weight_in_scope(
        layer,
        library.on_host,
        initializer=initializer,
        name=name,
        shape=shape,
        dtype=dtype,
        trainable=trainable,
    )
