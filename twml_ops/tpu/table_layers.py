"""The layers whose tables another system can hold, and the part of a model before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from twml_ops import _keras, placement
from twml_ops.layers import DynamicLookup, FieldEmbedding, GroupedSparseLinear, SparseLinear
from twml_ops.layers._feature_norm import FeatureNorm
from twml_ops.layers._tables import LookupTable, TableLayer
from twml_ops.tpu.external_lookup import ExternalLookup

_TABLE_LAYERS = (SparseLinear, GroupedSparseLinear, FieldEmbedding)
_MAX_ROWS = 2**31  # ids are int32 in TPUEmbedding


def table_layers(model: Any) -> dict[str, TableLayer]:
    """Finds the layers of a model that have tables, and lets them use looked-up products.

    The placement of their tables becomes an `ExternalLookup`, see `use_lookups`.

    Args:
        model: A Keras model, which is built.

    Returns:
        The layers by name.

    Raises:
        ValueError: There is no such layer, two have one name, or one is called several times; a
            table is partitioned, sharded, in a file, regularized, not float32 or has more than 2^31
            rows; or there is a `DynamicLookup`.
    """
    found: dict[str, TableLayer] = {}
    for layer in _keras.all_layers(model):
        if isinstance(layer, DynamicLookup):
            raise ValueError(
                f"layer {layer.name!r} gives rows to ids on the host of one process, so it cannot "
                "be trained on TPUs; use hashed ids (models.HashedIds)"
            )
        if not isinstance(layer, _TABLE_LAYERS):
            continue
        if layer.name in found:
            raise ValueError(f"layers with tables must have different names, got {layer.name!r} 2x")
        _check_options(layer)
        for table in layer.lookup_tables:
            if table.shape[0] > _MAX_ROWS:
                raise ValueError(
                    f"table {table.name!r} must have at most 2^31 rows, whose ids are int32 in "
                    f"TPUEmbedding, got {table.shape[0]:,}"
                )
            rows = getattr(placement.placement_of(table.variable), "rows", None)
            placement.set_placement(table.variable, ExternalLookup(layer.name, rows))
        found[layer.name] = layer
    if not found:
        raise ValueError(
            "model must have a SparseLinear, GroupedSparseLinear or FieldEmbedding layer, got none"
        )
    if _keras.symbolic_inputs(model) is not None:
        for name, calls in _calls_of(model, found).items():
            if len(calls) > 1:
                raise ValueError(
                    f"layer {name!r} must be called once, since its products are looked up by its "
                    f"name, got {len(calls)} calls: use a GroupedSparseLinear for shared tables"
                )
    return found


def lookup_tables(model: Any) -> list[tuple[TableLayer, LookupTable]]:
    """The tables of `table_layers`, each with its layer."""
    return [(layer, t) for layer in table_layers(model).values() for t in layer.lookup_tables]


def table_inputs(model: Any) -> tf.keras.Model:
    """Returns the part of a model before its tables, which runs on the host.

    It has the layers of `model` itself, with their states. With `training=True` the states of
    `MaxNorm` and `OnlineStandardize` are updated, as by `map_on_host`.

    Args:
        model: A functional model, whose layers with tables it calls itself, each once.

    Returns:
        A Keras model: the features of `model` → name of each layer with tables → what it is called
        with, for `lookup_inputs`.

    Raises:
        ValueError: The model is not functional or calls such a layer in another model; or a layer
            before a table has trainable weights, which get no gradient through a lookup.
    """
    symbolic = _keras.symbolic_inputs(model)
    if symbolic is None:
        raise ValueError(f"model must be a functional model, got {type(model).__name__}")
    outputs = {}
    for name, calls in _calls_of(model, table_layers(model)).items():
        if not calls:
            raise ValueError(
                f"layer {name!r} must be called by the model itself, got a model in it"
            )
        outputs[name] = calls[0].argument
    host = tf.keras.Model(symbolic, outputs, name="table_inputs")
    trained = [layer.name for layer in _keras.all_layers(host) if layer.trainable_weights]
    if trained:
        raise ValueError(
            f"layer {trained[0]!r} is before a table and has trainable weights, which get no "
            "gradient through a lookup: set its `trainable` to False, or build it without them "
            "(MaxNorm: use_bias=False)"
        )
    return host


def map_on_host(dataset: tf.data.Dataset, transform: Any, training: bool = True) -> tf.data.Dataset:
    """Applies layers such as discretizers, hashes and `MaxNorm` in an input pipeline, on the host.

    Args:
        dataset: A dataset of (features, labels, ...).
        transform: A layer, a model, or a sequence of layers that are applied one after the other.
        training: Whether `MaxNorm` and `OnlineStandardize` update their states.

    Returns:
        The dataset with transformed features.

    Raises:
        ValueError: `training` is true and a layer has trainable weights, such as the bias of
            `MaxNorm`. There are no gradients in a pipeline; use `use_bias=False`.
    """
    chain = list(transform) if isinstance(transform, Iterable) else [transform]
    for layer in chain:
        if layer.trainable_weights and training:
            raise ValueError(
                f"layer {layer.name!r} has trainable weights, which a pipeline on the host cannot "
                "train: use use_bias=False, or keep the layer in the model"
            )

    def transformed(features: Any, *others: Any) -> Any:
        for layer in chain:
            has_state = isinstance(layer, FeatureNorm)
            features = layer(features, training=training) if has_state else layer(features)
        return (features, *others)

    # Without parallel calls, since states are updated in the order of the batches.
    return dataset.map(transformed)


def _calls_of(model: Any, layers: dict[str, TableLayer]) -> dict[str, list[_keras.LayerCall]]:
    calls, _ = _keras.layer_calls(model.outputs)
    return {n: [c for c in calls if c.layer is layer] for n, layer in layers.items()}


def _check_options(layer: TableLayer) -> None:
    owner = f"layer {layer.name!r}"
    options = [
        (owner, "num_partitions", 1, getattr(layer, "num_partitions", 1)),
        (owner, "placement", "auto", getattr(layer, "placement", "auto")),
        (owner, "kernel_dtype", "float32", getattr(layer, "kernel_dtype", "float32")),
        (owner, "storage", None, getattr(layer, "storage", None)),
        (owner, "kernel_regularizer", None, getattr(layer, "kernel_regularizer", None)),
        (owner, "embeddings_regularizer", None, getattr(layer, "embeddings_regularizer", None)),
    ]
    if isinstance(layer, GroupedSparseLinear):
        for name, table in layer.tables.items():
            of = f"table {name!r} of {owner}"
            options += [
                (of, "dtype", "float32", table.dtype),
                (of, "storage", None, table.storage),
                (of, "regularizer", None, table.regularizer),
            ]
    for of, what, want, got in options:
        if got != want:
            raise ValueError(f"{what} of {of} must be {want!r} for TPUEmbedding, got {got!r}")
