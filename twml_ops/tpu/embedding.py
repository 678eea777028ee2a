"""Converts a model's tables to tables of `tf.tpu.experimental.embedding`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import placement
from twml_ops.layers._tables import LookupTable
from twml_ops.ops._tape import tf_variable
from twml_ops.tpu.optimizers import check_sparse_core_options, optimizers_of_tables
from twml_ops.tpu.table_layers import lookup_tables, table_layers

_embedding = tf.tpu.experimental.embedding
Weights = tuple[dict[str, tf.SparseTensor], dict[str, tf.SparseTensor]]


def feature_configs(model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Returns the configuration of `TPUEmbedding` and similar classes for a model's tables.

    `SparseLinear` has one feature, with the name of the layer; `GroupedSparseLinear` a feature
    "layer/feature" for each of its own, some of which may share a table; `FieldEmbedding` a feature
    "layer/field_NUMBER" for each field, all in one table or in one for each width. Where it only
    adds up the vectors of fields that are no bags (`pooling`), it has one feature, the sum.

    Args:
        model: A Keras model with tables. The tables start with their values.
        optimizer: The optimizer of the tables, one of this package, whose steps count; None: that
            of the compiled model. Of a `CompositeOptimizer` each table has the optimizer whose
            pattern matches its variable in `model`. Layers that are not trainable keep their tables
            as they are.

    Returns:
        Name of the feature → `FeatureConfig`. Features of one table have the same `TableConfig`.

    Raises:
        ValueError: The model has no tables, or one that `TPUEmbedding` cannot have: partitioned,
            sharded, in a file, regularized or not float32; or a layer is called several times; or
            `table_optimizer` does not support the optimizer.
    """
    optimizer_of = optimizers_of_tables(model.optimizer if optimizer is None else optimizer)
    configs = {}
    for layer, table in lookup_tables(model):
        rows, units = table.shape
        config = _embedding.TableConfig(
            vocabulary_size=rows,
            dim=units,
            initializer=_values_of(table),
            optimizer=optimizer_of(table.variable) if layer.trainable else _embedding.SGD(0.0),
            combiner="sum",
            name=table.name,
        )
        for feature in table.features:
            configs[feature] = _embedding.FeatureConfig(table=config, name=feature)
    return configs


def lookup_inputs(model: Any, batches: Mapping[str, Any]) -> Weights:
    """Converts batches to the form that `TPUEmbedding.enqueue` takes. Can be used in `tf.data`.

    Args:
        model: The model of `feature_configs`.
        batches: Maps the name of each layer with tables to what it is called with, as the model of
            `table_inputs` returns it.

    Returns:
        `(ids, weights)`, each a map from the name of the feature to a SparseTensor [B, longest
        row]: int64 ids of rows, and the float32 weights with which the rows are added up.

    Raises:
        ValueError: The model has no such layer.
        tf.errors.InvalidArgumentError: An id is out of range, and the layer's `out_of_range` is
            "error".
    """
    layers = table_layers(model)
    ids, weights = {}, {}
    for name, inputs in batches.items():
        if name not in layers:
            raise ValueError(f"batches must be of layers {sorted(layers)}, got {name!r}")
        rows = layers[name].lookup_rows(inputs)
        for table in layers[name].lookup_tables:
            for feature in table.features:
                batch = rows[feature]
                place = tf.RaggedTensor.from_row_splits(
                    _checked(batch.ids, table.shape[0], feature), batch.row_splits, validate=False
                )
                ids[feature] = place.to_sparse()
                weights[feature] = ids[feature].with_values(batch.values_or_ones())
    return ids, weights


def create_embedding(configs: Mapping[str, Any], optimizer: Any = None) -> Any:
    """Creates the embedding object that suits the current strategy.

    Args:
        configs: The result of `feature_configs`.
        optimizer: An optimizer of `tf.tpu.experimental.embedding`, for tables without one.

    Returns:
        A `TPUEmbeddingV2` on TPUs with SparseCores, a `TPUEmbedding` on other TPUs, and without a
        TPU a `TPUEmbeddingForServing`, whose tables are variables on the host.

    Raises:
        ValueError: The TPU has SparseCores, and a table has a `clipvalue`, which they ignore; or
            this TensorFlow does not support SparseCores.
    """
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return _embedding.TPUEmbeddingForServing(dict(configs), optimizer)
    hardware = tf.tpu.experimental.HardwareFeature(strategy.extended.tpu_hardware_feature)
    v2 = tf.tpu.experimental.HardwareFeature.EmbeddingFeature.V2
    if hardware.embedding_feature == v2:
        check_sparse_core_options(configs)
        if not hasattr(_embedding, "TPUEmbeddingV2"):
            raise ValueError(
                "TPUs with SparseCores need TPUEmbeddingV2, which TensorFlow "
                f"{tf.__version__} does not have: use a newer one"
            )
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
        Name of the feature → product, float32 [B, D].
    """
    ids, weights = inputs
    return dict(
        _embedding.serving_embedding_lookup(ids, weights, embedding.embedding_tables, dict(configs))
    )


def copy_tables_to_embedding(model: Any, embedding: Any) -> None:
    """Copies the tables of a model to an embedding object, on the host.

    Args:
        model: A Keras model with tables.
        embedding: An object with `embedding_tables`.

    Raises:
        ValueError: `embedding` lacks one of the tables.
    """
    variables = _tables_of(embedding)
    for _, table in lookup_tables(model):
        _variable(variables, table.name).assign(tf.convert_to_tensor(table.variable))


def copy_tables_from_embedding(model: Any, embedding: Any) -> None:
    """Copies the tables of an embedding object to a model, to serve on CPUs what a TPU has trained.

    On a TPU, call `embedding._retrieve_variables` first, or restore the checkpoint of the training
    into a `TPUEmbeddingForServing`: see docs/tpu.md.

    Args:
        model: A Keras model with tables.
        embedding: An object with `embedding_tables`.

    Raises:
        ValueError: `embedding` lacks one of the tables.
    """
    variables = _tables_of(embedding)
    for _, table in lookup_tables(model):
        table.variable.assign(tf.convert_to_tensor(_variable(variables, table.name)))


def copy_dense_weights(source: Any, target: Any) -> None:
    """Copies all weights but the tables between a model with tables and one of `external_tables`.

    Args:
        source: A Keras model with tables or without.
        target: A model of the same layers.

    Raises:
        ValueError: The models have other weights.
    """
    pairs = []
    for model in (source, target):
        tables = {id(tf_variable(table.variable)) for _, table in lookup_tables(model)}
        pairs.append([v for v in model.weights if id(tf_variable(v)) not in tables])
    shapes = [[tuple(v.shape) for v in weights] for weights in pairs]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"target must have the weights of source, {shapes[0]} without tables, got {shapes[1]}"
        )
    placement.copy_weights(*pairs)


def _checked(ids: tf.Tensor, rows: int, feature: str) -> tf.Tensor:
    """The ids, int64, which are rows of a table: a TPU does not check them."""
    ids = tf.cast(ids, tf.int64)
    message = f"ids of {feature!r} must be in [0, {rows})"
    checks = [
        tf.debugging.assert_non_negative(ids, message),
        tf.debugging.assert_less(ids, tf.constant(rows, tf.int64), message),
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(ids)


def _values_of(table: LookupTable) -> Any:
    """Returns an initializer of the table's values, or of the part that a TPU asks for."""
    variable = table.variable
    if not variable.shape[0]:
        return table.initializer

    def initializer(shape: Any, dtype: Any = tf.float32, **kwargs: Any) -> tf.Tensor:
        whole = tf.convert_to_tensor(variable)
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
        raise ValueError(f"embedding must have the table {name!r}, got tables {sorted(variables)}")
    return variables[name]
