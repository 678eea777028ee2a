"""Converts a model's tables to tables of `tf.tpu.experimental.embedding`, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import _keras, placement
from twml_ops._batch import parse
from twml_ops.layers import DynamicLookup, SparseLinear
from twml_ops.layers._feature_norm import FeatureNorm
from twml_ops.tpu.external_lookup import ExternalLookup
from twml_ops.tpu.optimizers import table_optimizer

_embedding = tf.tpu.experimental.embedding
Weights = tuple[dict[str, tf.SparseTensor], dict[str, tf.SparseTensor]]


def sparse_layers(model: Any) -> dict[str, SparseLinear]:
    """Finds the `SparseLinear` layers of a model and lets them use looked-up products.

    Each layer is a feature of its own in `TPUEmbedding`. Its placement becomes an `ExternalLookup`,
    see `use_lookups`.

    Args:
        model: A Keras model.

    Returns:
        The layers by name.

    Raises:
        ValueError: There is no such layer, or the table of one is partitioned, sharded, regularized
            or not float32, or wraps ids; or there is a `DynamicLookup`.
    """
    found = {}
    for layer in _keras.all_layers(model):
        if isinstance(layer, DynamicLookup):
            raise ValueError(
                f"layer {layer.name!r} gives rows to ids on the host of one process, so it cannot "
                "be trained on TPUs; use hashed ids (models.HashedIds)"
            )
        if not isinstance(layer, SparseLinear):
            continue
        for what, got, want in (
            ("num_partitions", layer.num_partitions, 1),
            ("placement", layer.placement, "auto"),
            ("kernel_dtype", layer.kernel_dtype, "float32"),
            ("kernel_regularizer", layer.kernel_regularizer, None),
            ("out_of_range", layer.out_of_range, "error"),
        ):
            if got != want:
                raise ValueError(f"{what} of layer {layer.name!r} must be {want!r}, got {got!r}")
        rows = getattr(placement.placement_of(layer.kernel), "rows", None)
        placement.set_placement(layer.kernel, ExternalLookup(layer.name, rows))
        found[layer.name] = layer
    if not found:
        raise ValueError("model must have a SparseLinear layer, got none")
    return found


def feature_configs(model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Returns the configuration of `TPUEmbedding` and similar classes for a model's tables.

    Args:
        model: A Keras model with `SparseLinear` layers. The tables start with their values.
        optimizer: The optimizer of the tables, one of this package; None: that of the compiled
            model.

    Returns:
        Name of the layer -> `FeatureConfig`, with a `TableConfig` of its own.

    Raises:
        ValueError: The model has no `SparseLinear` layer; or a table is partitioned, sharded or not
            float32; or `table_optimizer` does not support the optimizer.
    """
    optimizer = model.optimizer if optimizer is None else optimizer
    configs = {}
    for name, layer in sparse_layers(model).items():
        table = _embedding.TableConfig(
            vocabulary_size=layer.input_dim,
            dim=layer.units,
            initializer=_values_of(layer),
            optimizer=table_optimizer(optimizer),
            combiner="sum",
            name=name,
        )
        configs[name] = _embedding.FeatureConfig(table=table, name=name)
    return configs


def lookup_inputs(batches: Mapping[str, Any]) -> Weights:
    """Converts batches to the form that `TPUEmbedding.enqueue` takes. Can be used in `tf.data`.

    Args:
        batches: Maps the name of each layer to its batch, in any batch form.

    Returns:
        `(ids, weights)`, each a map from the name of the layer to a SparseTensor [B, longest row]:
        int64 ids, and float32 values.
    """
    ids, weights = {}, {}
    for name, inputs in batches.items():
        batch, _ = parse(inputs)
        place = tf.RaggedTensor.from_row_splits(
            tf.cast(batch.ids, tf.int64), batch.row_splits, validate=False
        )
        sparse = place.to_sparse()
        ids[name] = sparse
        weights[name] = sparse.with_values(batch.values_or_ones())
    return ids, weights


def create_embedding(configs: Mapping[str, Any], optimizer: Any = None) -> Any:
    """Creates the embedding object that suits the current strategy.

    Args:
        configs: The result of `feature_configs`.
        optimizer: An optimizer of `tf.tpu.experimental.embedding`, for tables without one.

    Returns:
        A `TPUEmbeddingV2` on TPUs with SparseCores, a `TPUEmbedding` on other TPUs, and without a
        TPU a `TPUEmbeddingForServing`, whose tables are variables on the host.
    """
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return _embedding.TPUEmbeddingForServing(dict(configs), optimizer)
    hardware = tf.tpu.experimental.HardwareFeature(strategy.extended.tpu_hardware_feature)
    v2 = tf.tpu.experimental.HardwareFeature.EmbeddingFeature.V2
    if hardware.embedding_feature == v2:
        return _embedding.TPUEmbeddingV2(dict(configs), optimizer)
    return _embedding.TPUEmbedding(dict(configs), optimizer)


def host_lookup(embedding: Any, inputs: Weights, configs: Mapping[str, Any]) -> dict[str, Any]:
    """Looks up products on the host.

    Args:
        embedding: An object with `embedding_tables`: `TPUEmbeddingForServing`, or `TPUEmbedding`
            without a TPU.
        inputs: The result of `lookup_inputs`.
        configs: The result of `feature_configs` that `embedding` was created with.

    Returns:
        Name of the layer -> product, float32 [B, D].
    """
    ids, weights = inputs
    return dict(
        _embedding.serving_embedding_lookup(ids, weights, embedding.embedding_tables, dict(configs))
    )


def copy_tables_to_embedding(model: Any, embedding: Any) -> None:
    """Copies the tables of a model to an embedding object, on the host.

    Args:
        model: A Keras model with `SparseLinear` layers.
        embedding: An object with `embedding_tables`.

    Raises:
        ValueError: `embedding` has no table for one of the layers.
    """
    variables = _tables_of(embedding)
    for name, layer in sparse_layers(model).items():
        _variable(variables, name).assign(tf.convert_to_tensor(layer.kernel))


def copy_tables_from_embedding(model: Any, embedding: Any) -> None:
    """Copies the tables of an embedding object to a model, to serve on CPUs what a TPU has trained.

    On a TPU, call `embedding._retrieve_variables` first, or restore the checkpoint of the training
    into a `TPUEmbeddingForServing`: see docs/tpu.md.

    Args:
        model: A Keras model with `SparseLinear` layers.
        embedding: An object with `embedding_tables`.

    Raises:
        ValueError: `embedding` has no table for one of the layers.
    """
    variables = _tables_of(embedding)
    for name, layer in sparse_layers(model).items():
        layer.kernel.assign(tf.convert_to_tensor(_variable(variables, name)))


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


def _values_of(layer: SparseLinear) -> Any:
    """Returns an initializer of the layer's values, or of the part that a TPU asks for."""
    kernel = layer.kernel
    if not kernel.shape[0]:
        return layer.kernel_initializer

    def initializer(shape: Any, dtype: Any = tf.float32, **kwargs: Any) -> tf.Tensor:
        whole = tf.convert_to_tensor(kernel)
        offset = kwargs.get("partition_info") or kwargs.get("partition_offset")
        if offset is None and tuple(shape) == tuple(whole.shape):
            return tf.cast(whole, dtype)
        begin = np.array(getattr(offset, "var_offset", offset) or [0, 0])
        part = whole[begin[0] : begin[0] + shape[0], : shape[1]]
        rows, columns = (int(n) - int(have) for n, have in zip(shape, part.shape, strict=True))
        return tf.cast(tf.pad(part, [[0, rows], [0, columns]]), dtype)

    return initializer


def _tables_of(embedding: Any) -> dict[str, Any]:
    return {config.name: variable for config, variable in embedding.embedding_tables.items()}


def _variable(variables: Mapping[str, Any], name: str) -> Any:
    if name not in variables:
        raise ValueError(
            f"embedding must have a table for layer {name!r}, got tables {sorted(variables)}"
        )
    return variables[name]
