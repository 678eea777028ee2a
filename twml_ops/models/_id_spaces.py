"""Parts that the models share. Each kind of features has an id space of its own.

continuous ──┬─ buckets
             └─ max norm
categorical ─── hash
sparse ──────── max norm
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import MaxNorm, PercentileDiscretizer, SparseLinear
from twml_ops.models._labels import probabilities
from twml_ops.models.hashed_ids import HashedIds


class IdSpace(NamedTuple):
    """A batch of entries whose ids are in [0, size).

    Attributes:
        name: name of the id space, a suffix of layer names.
        batch: symbolic ragged batch.
        size: size of the id space.
    """

    name: str
    batch: Any
    size: int


def id_spaces(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    num_bins: int,
    discretize: bool,
    categorical_bits: int,
) -> tuple[dict[str, Any], list[IdSpace]]:
    """Makes the inputs of a model and transforms them to id spaces.

    Args:
        schema: the features.
        dataset: batches of (features, labels, ...) on which the discretizer is adapted.
        num_bins: number of buckets of a continuous feature.
        discretize: whether continuous features have an id space of buckets as well.
        categorical_bits: categories are hashed into 2^categorical_bits ids.

    Returns:
        (inputs by name, id spaces).

    Raises:
        ValueError: the schema has no features.
    """
    inputs: dict[str, Any] = {}
    spaces: list[IdSpace] = []
    if schema.continuous:
        numbers = _inputs(inputs, continuous_ids="int64", continuous_values="float32")
        normalized = MaxNorm(len(schema.continuous), name="continuous_norm")(numbers)
        if discretize:
            buckets = PercentileDiscretizer(num_bins, unknown="drop", name="buckets")
            buckets.adapt(dataset.map(lambda f, *_: (f["continuous_ids"], f["continuous_values"])))
            spaces.append(IdSpace("buckets", buckets(numbers), buckets.output_dim))
        spaces.append(IdSpace("continuous", normalized, len(schema.continuous)))
    if schema.categorical:
        (ids,) = _inputs(inputs, categorical_ids="int64")
        hashed = HashedIds(categorical_bits, name="categorical_hash")
        spaces.append(IdSpace("categorical", hashed(ids), hashed.output_dim))
    if schema.sparse_dim:
        raw = _inputs(inputs, sparse_ids="int64", sparse_values="float32")
        normalized = MaxNorm(schema.sparse_dim, name="sparse_norm")(raw)
        spaces.append(IdSpace("sparse", normalized, schema.sparse_dim))
    if not spaces:
        raise ValueError("schema must have at least one feature, got none")
    return inputs, spaces


def _inputs(inputs: dict[str, Any], **dtypes: str) -> tuple[Any, ...]:
    """Adds ragged inputs [B, None] to `inputs` and returns them."""
    new = {
        name: tf.keras.Input((None,), ragged=True, dtype=dtype, name=name)
        for name, dtype in dtypes.items()
    }
    inputs.update(new)
    return tuple(new.values())


def linear_parts(spaces: Sequence[IdSpace], units: int, name: str, stddev: float) -> list[Any]:
    """The outputs [B, units] of one `SparseLinear` per id space.

    Args:
        spaces: the id spaces.
        units: number of outputs.
        name: prefix of the layer names.
        stddev: standard deviation of the initial rows.
    """
    return [
        SparseLinear(
            units,
            space.size,
            use_bias=space is spaces[0],
            kernel_initializer=tf.keras.initializers.RandomNormal(stddev=stddev),
            name=f"{name}_{space.name}",
        )(space.batch)
        for space in spaces
    ]


def linear(spaces: Sequence[IdSpace], units: int, name: str, stddev: float) -> Any:
    """A linear layer [B, units] over all id spaces: the sum of `linear_parts`."""
    parts = linear_parts(spaces, units, name, stddev)
    return parts[0] if len(parts) == 1 else tf.keras.layers.Add(name=name)(parts)


def dense_net(x: Any, hidden: Sequence[int], dropout: float) -> Any:
    """Dense layers of the widths `hidden`, each followed by dropout."""
    for width in hidden:
        x = tf.keras.layers.Dense(width, activation="relu")(x)
        x = tf.keras.layers.Dropout(dropout)(x)
    return x


def wide_and_deep(
    name: str,
    inputs: dict[str, Any],
    spaces: Sequence[IdSpace],
    deep: Any,
    base: Sequence[float],
    labels: Sequence[str],
) -> tf.keras.Model:
    """A model whose outputs are the sigmoid of a deep logit plus a wide linear logit.

    Args:
        name: name of the model.
        inputs: inputs of the model by name.
        spaces: id spaces of the wide part.
        deep: output of the deep part, [B, any].
        base: initial bias of the deep logit of each label.
        labels: names of the labels.
    """
    start = tf.keras.initializers.Constant(base[0] if len(base) == 1 else list(base))
    deep = tf.keras.layers.Dense(len(labels), bias_initializer=start, name="deep_logit")(deep)
    wide = linear(spaces, len(labels), "wide", 0.0)
    logit = tf.keras.layers.Add(name="logit")([deep, wide])
    return tf.keras.Model(inputs, probabilities(logit, labels), name=name)
