"""A model's tables as those of `tf.tpu.experimental.embedding`, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import _keras, placement
from twml_ops._batch import parse
from twml_ops.layers import SparseLinear
from twml_ops.layers._feature_norm import FeatureNorm
from twml_ops.tpu.external_lookup import ExternalLookup
from twml_ops.tpu.optimizers import table_optimizer

_embedding = tf.tpu.experimental.embedding
Weights = tuple[dict[str, tf.SparseTensor], dict[str, tf.SparseTensor]]


def sparse_layers(model: Any) -> dict[str, SparseLinear]:
    """Name -> `SparseLinear`, of those whose table a TPU can have; each a feature of its own.

    Their placement is told that products may come from elsewhere: see `use_lookups`.

    Raises:
        ValueError: no such layer, or one that is partitioned, sharded or not float32.
    """
    found = {}
    for layer in _keras.all_layers(model):
        if not isinstance(layer, SparseLinear):
            continue
        for what, got, want in (
            ("num_partitions", layer.num_partitions, 1),
            ("placement", layer.placement, "auto"),
            ("kernel_dtype", layer.kernel_dtype, "float32"),
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
    """Layer -> `FeatureConfig` with a `TableConfig` of its own, for `TPUEmbedding` and its like.

    Args:
        model: with its `SparseLinear`s, whose values the tables start from.
        optimizer: of this package, for the tables; None: that of the compiled model.

    Raises:
        ValueError: see `sparse_layers` and `table_optimizer`.
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
    """The batches of the layers, in any form, as what `enqueue` takes: for use in `tf.data`.

    Args:
        batches: name of the layer -> its batch.

    Returns:
        `(ids, weights)`, each name -> SparseTensor [B, longest row]: int64 ids, and values.
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
    """The embedding API that the strategy in force wants.

    On TPUs with SparseCores `TPUEmbeddingV2`, on others `TPUEmbedding`; without a TPU
    `TPUEmbeddingForServing`, whose tables are variables of the host.

    Args:
        configs: of `feature_configs`.
        optimizer: of `tf.tpu.experimental.embedding`, for tables without one.
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
    """Layer -> product [B, D], looked up on the host in the tables of `embedding`.

    Args:
        embedding: with `embedding_tables`: `TPUEmbeddingForServing`, or any other off a TPU.
        inputs: of `lookup_inputs`.
        configs: of `feature_configs`, those that `embedding` was made of.
    """
    ids, weights = inputs
    return dict(
        _embedding.serving_embedding_lookup(ids, weights, embedding.embedding_tables, dict(configs))
    )


def copy_tables_to_embedding(model: Any, embedding: Any) -> None:
    """Copies the model's tables into those of `embedding`, on the host.

    Raises:
        ValueError: `embedding` lacks one of the tables.
    """
    variables = _tables_of(embedding)
    for name, layer in sparse_layers(model).items():
        _variable(variables, name).assign(tf.convert_to_tensor(layer.kernel))


def copy_tables_from_embedding(model: Any, embedding: Any) -> None:
    """Copies the tables of `embedding` into the model: train on a TPU, serve on CPUs.

    On a TPU call `embedding._retrieve_variables` first, or restore the checkpoint that the training
    wrote into a `TPUEmbeddingForServing`: see docs/tpu.md.

    Raises:
        ValueError: `embedding` lacks one of the tables.
    """
    variables = _tables_of(embedding)
    for name, layer in sparse_layers(model).items():
        layer.kernel.assign(tf.convert_to_tensor(_variable(variables, name)))


def map_on_host(dataset: tf.data.Dataset, transform: Any, training: bool = True) -> tf.data.Dataset:
    """`dataset` with its features transformed on the host: discretizers, hashes, max-norm.

    Args:
        dataset: of (features, labels, ...).
        transform: a layer, a model or a sequence of layers, applied one after the other.
        training: whether `MaxNorm` and its like learn from what passes.

    Raises:
        ValueError: a layer with trainable weights (a normalization's bias): a pipeline has no
            gradients; use `use_bias=False`.
    """
    chain = list(transform) if isinstance(transform, Iterable) else [transform]
    for layer in chain:
        if layer.trainable_weights and training:
            raise ValueError(
                f"layer {layer.name!r} has trainable weights, which a pipeline on the host cannot "
                "train: use use_bias=False, or leave the layer in the model"
            )

    def transformed(features: Any, *others: Any) -> Any:
        for layer in chain:
            learns = isinstance(layer, FeatureNorm)
            features = layer(features, training=training) if learns else layer(features)
        return (features, *others)

    # One after the other: states are learned in the order of the batches.
    return dataset.map(transformed)


def _values_of(layer: SparseLinear) -> Any:
    """An initializer that gives the layer's values, row by row where a TPU asks for a part."""
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
        raise ValueError(f"embedding has the tables {sorted(variables)}, none for layer {name!r}")
    return variables[name]
