"""Creation of the weights that the ops of this package read and update in place."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import add_weight_in_scope, before_updates, updates_only_rows
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable

LARGE_TABLE_BYTES = 16 << 20
"""From this size on, an update of every row takes longer than the rest of a usual step."""
_OWNER = "_twml_owner"  # attribute of a trained table: the class and the name of its layer
_CHECKED = "_twml_tables_checked"  # attribute of an optimizer
_REPLACEMENTS = {"Adagrad": "Adagrad", "Ftrl": "Ftrl"}


def add_table(
    layer: Any,
    name: str,
    shape: Sequence[int],
    initializer: Any,
    dtype: str = "float32",
    trainable: bool = True,
) -> Any:
    """Adds a weight to `layer`, in the place that its placement chooses. Call it in `build`.

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
    weight = add_weight_in_scope(
        layer,
        library.table_scope(),
        initializer=initializer,
        name=name,
        shape=shape,
        dtype=dtype,
        trainable=trainable,
    )
    if trainable:
        setattr(weight, _OWNER, f"{type(layer).__name__} {layer.name!r}")
    return weight


def _warn_of_dense_updates(optimizer: Any, variables: Sequence[Any]) -> None:
    """Warns once of an optimizer that updates every row of large tables in each step."""
    if getattr(optimizer, _CHECKED, False):
        return
    vars(optimizer)[_CHECKED] = True
    if updates_only_rows(optimizer):
        return
    sizes = [(math.prod(v.shape) * tf.as_dtype(v.dtype).size, v) for v in variables if _owner_of(v)]
    large = [pair for pair in sizes if pair[0] >= LARGE_TABLE_BYTES]
    if not large:
        return
    size, table = max(large, key=lambda pair: pair[0])
    kind = type(optimizer).__name__
    ours = _REPLACEMENTS.get(kind, "LazyAdam")
    if kind == "SGD":
        ours = "Momentum" if getattr(optimizer, "momentum", 0) else "SGD"
    others = f" and of {len(large) - 1} more large tables" if len(large) > 1 else ""
    warnings.warn(
        f"Keras' {kind} updates every row of the table {getattr(table, 'path', table.name)!r} of "
        f"{_owner_of(table)} ({table.shape[0]:,} rows, {size / 2**20:,.0f} MiB){others} in each "
        "step, which may take most of the time of training. An optimizer of this package updates "
        "the rows of the batch only: "
        f"model.compile(twml_ops.optimizers.{ours}(...), ...)",
        stacklevel=4,
    )


def _owner_of(variable: Any) -> str | None:
    owner: str | None = getattr(variable, _OWNER, None) or getattr(
        tf_variable(variable), _OWNER, None
    )
    return owner


before_updates(_warn_of_dense_updates)


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
