"""The reference ranking model: a very wide sparse linear layer and a small dense net.

continuous ──┬─ buckets ──────┐
             └─ max norm ─────┤
categorical ─── hash ─────────┼─ sparse linear ─ relu ─ dense net ─┐
sparse ──────── max norm ─────┤                                   (+)─ sigmoid
                              └─ sparse linear, 1 unit ────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import MaxNorm, PercentileDiscretizer, SparseLinear
from twml_ops.models._labels import base_logits, probabilities
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


def sparse_mlp(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    units: int = 32,
    hidden: Sequence[int] = (32,),
    dropout: float = 0.5,
    num_bins: int = 20,
    discretize: bool = True,
    categorical_bits: int = 18,
    stddev: float = 0.02,
) -> tf.keras.Model:
    """Builds a wide-and-deep model.

    Each id space (buckets, normalized numbers, hashed categories, raw sparse ids) has a
    `SparseLinear` with `units` outputs. Their sum equals one layer on the concatenation of the id
    spaces. A dense net follows; the wide part has one weight for each id. See Cheng et al., "Wide &
    Deep Learning for Recommender Systems", DLRS 2016.

    Args:
        schema: the features.
        dataset: batches of (features, labels) or (features, labels, sample weights) on which the
            discretizer is adapted, usually the training data.
        units: number of outputs of the first layer.
        hidden: widths of the dense layers that follow.
        dropout: share of the outputs of these layers that is dropped in training.
        num_bins: number of buckets of a continuous feature.
        discretize: whether continuous features are inputs as buckets too, beside their values.
        categorical_bits: categories are hashed into 2^categorical_bits ids.
        stddev: standard deviation of the initial rows of the first layer.

    Returns:
        An uncompiled model: dictionary of ragged features, named as in `Source.dataset` →
        probabilities [B, 1]; of several labels a dict of them.

    Raises:
        ValueError: the schema has no features.
    """
    inputs, spaces = id_spaces(
        schema,
        dataset,
        num_bins=num_bins,
        discretize=discretize,
        categorical_bits=categorical_bits,
    )
    deep = tf.keras.layers.Activation("relu", name="first")(linear(spaces, units, "deep", stddev))
    deep = tf.keras.layers.Dropout(dropout)(deep)
    deep = dense_net(deep, hidden, dropout)
    return wide_and_deep(
        "sparse_mlp", inputs, spaces, deep, base_logits(dataset, schema.labels), schema.labels
    )
