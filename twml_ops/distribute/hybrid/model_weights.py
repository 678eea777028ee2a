"""Copying the weights of one model to another, wherever their tables are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from twml_ops import _keras
from twml_ops.distribute.hybrid.remote_table import RemoteTable
from twml_ops.ops._tape import tf_variable


def copy_weights(source: Any, target: Any, tables: Mapping[str, tf.Tensor] | None = None) -> None:
    """Copies all weights and states of the layers of `source` to the layers of `target`.

    A table of `source` that is on servers is fetched. A table of `source` may also have no values
    anywhere (see `ChiefBuiltModel`). Then a remote table of `target` takes over its initializer,
    and a whole table of `target` gets the value in `tables`, or keeps its own if there is none.

    Args:
        source: A Keras model.
        target: Another model of the same layers.
        tables: Maps names of tables of `source` without values to their values, [N, D].
    """
    for target_layer, source_layer in zip(_layers(target), _layers(source), strict=True):
        source_tables = layer_tables(source_layer)
        if not any(isinstance(k, RemoteTable) for k in source_tables):
            store: dict[str, Any] = {}
            source_layer.save_own_variables(store)
            if store:
                target_layer.load_own_variables(store)
            continue
        target_tables = layer_tables(target_layer)
        for target_table, source_table in zip(target_tables, source_tables, strict=True):
            _copy_table(source_table, target_table, tables or {})
        table_ids = {id(k) for k in (*target_tables, *source_tables)}
        target_weights, source_weights = (
            [v for v in _keras.direct_variables(layer) if id(v) not in table_ids]
            for layer in (target_layer, source_layer)
        )
        for v, value in zip(target_weights, source_weights, strict=True):
            tf_variable(v).assign(tf_variable(value))


def layer_tables(layer: Any) -> list[Any]:
    """Returns the tables of a layer.

    Args:
        layer: A Keras layer.

    Returns:
        Variables or `RemoteTable`s; an empty list for a layer without tables.
    """
    kernels = getattr(layer, "kernels", None) or ()
    return list(kernels.values() if isinstance(kernels, Mapping) else kernels)


def _copy_table(source: RemoteTable, target: Any, tables: Mapping[str, tf.Tensor]) -> None:
    if isinstance(target, RemoteTable):
        target.initializer = source.initializer
    elif source.shards or source.name in tables:
        value = source.fetch() if source.shards else tables[source.name]
        tf_variable(target).assign(tf.cast(value, target.dtype))


def _layers(model: Any) -> list[Any]:
    return [model, *_keras.all_layers(model)]
