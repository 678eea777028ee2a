"""The weights of one model given to another, whether tables are whole, on servers, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from twml_ops import _keras
from twml_ops.distribute.hybrid.tables import RemoteTable
from twml_ops.ops._tape import tf_variable


def copy_weights(source: Any, target: Any, tables: Mapping[str, tf.Tensor] | None = None) -> None:
    """Gives `target`, another model of the same layers, all that the layers of `source` hold.

    Tables of `source` that are on servers are fetched. Of those that are nowhere, tables that
    `target` has elsewhere get the initial values, and its whole ones those in `tables`, by name, or
    keep their own.
    """
    for mine, other in zip(_layers(target), _layers(source), strict=True):
        theirs = layer_tables(other)
        if not any(isinstance(k, RemoteTable) for k in theirs):
            store: dict[str, Any] = {}
            other.save_own_variables(store)
            if store:
                mine.load_own_variables(store)
            continue
        own = layer_tables(mine)
        for kernel, table in zip(own, theirs, strict=True):
            _copy_table(table, kernel, tables or {})
        apart = {id(k) for k in (*own, *theirs)}
        rest = (
            [v for v in _keras.direct_variables(m) if id(v) not in apart] for m in (mine, other)
        )
        for v, value in zip(*rest, strict=True):
            tf_variable(v).assign(tf_variable(value))


def layer_tables(layer: Any) -> list[Any]:
    """The tables of a layer; none of one that has none."""
    found = getattr(layer, "kernels", None) or ()
    return list(found.values() if isinstance(found, Mapping) else found)


def _copy_table(table: RemoteTable, kernel: Any, tables: Mapping[str, tf.Tensor]) -> None:
    if isinstance(kernel, RemoteTable):
        kernel.initializer = table.initializer
    elif table.shards or table.name in tables:
        value = table.fetch() if table.shards else tables[table.name]
        tf_variable(kernel).assign(tf.cast(value, kernel.dtype))


def _layers(model: Any) -> list[Any]:
    return [model, *_keras.all_layers(model)]
