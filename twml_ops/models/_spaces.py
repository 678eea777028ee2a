"""What the models share: the features of a schema, each kind in an id space of its own.

continuous ──┬─ buckets
             └─ max norm
categorical ─── hash
sparse ──────── max norm
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import MaxNorm, PercentileDiscretizer, SparseLinear
from twml_ops.models.hashed_ids import HashedIds


class Space(NamedTuple):
    """A batch in an id space of its own."""

    name: str
    batch: Any
    size: int


def spaces_of(
    schema: Schema,
    dataset: tf.data.Dataset,
    *,
    num_bins: int,
    discretize: bool,
    categorical_bits: int,
) -> tuple[dict[str, Any], list[Space]]:
    """The model's inputs, and the id spaces that they become. Arguments as of `sparse_mlp`."""
    inputs: dict[str, Any] = {}
    spaces: list[Space] = []
    if schema.continuous:
        numbers = _inputs(inputs, continuous_ids="int64", continuous_values="float32")
        normalized = MaxNorm(len(schema.continuous), name="continuous_norm")(numbers)
        if discretize:
            buckets = PercentileDiscretizer(num_bins, unknown="drop", name="buckets")
            buckets.adapt(dataset.map(lambda f, _: (f["continuous_ids"], f["continuous_values"])))
            spaces.append(Space("buckets", buckets(numbers), buckets.output_dim))
        spaces.append(Space("continuous", normalized, len(schema.continuous)))
    if schema.categorical:
        (ids,) = _inputs(inputs, categorical_ids="int64")
        hashed = HashedIds(categorical_bits, name="categorical_hash")
        spaces.append(Space("categorical", hashed(ids), hashed.output_dim))
    if schema.sparse_dim:
        raw = _inputs(inputs, sparse_ids="int64", sparse_values="float32")
        normalized = MaxNorm(schema.sparse_dim, name="sparse_norm")(raw)
        spaces.append(Space("sparse", normalized, schema.sparse_dim))
    if not spaces:
        raise ValueError("schema must have at least one feature, got none")
    return inputs, spaces


def base_logit(dataset: tf.data.Dataset) -> float:
    """The logit of the share of positives: a model that starts there has no base rate to learn."""
    zero = tf.constant(0.0, tf.float64)
    positives, examples = dataset.reduce(
        (zero, zero),
        lambda sums, batch: (
            sums[0] + tf.cast(tf.reduce_sum(batch[1]), tf.float64),
            sums[1] + tf.cast(tf.size(batch[1]), tf.float64),
        ),
    )
    rate = (float(positives) + 1) / (float(examples) + 2)  # never 0 or 1
    return math.log(rate / (1 - rate))


def _inputs(inputs: dict[str, Any], **dtypes: str) -> tuple[Any, ...]:
    """Adds ragged inputs [B, None] to `inputs`, and returns them."""
    new = {
        name: tf.keras.Input((None,), ragged=True, dtype=dtype, name=name)
        for name, dtype in dtypes.items()
    }
    inputs.update(new)
    return tuple(new.values())


def linear_parts(spaces: Sequence[Space], units: int, name: str, stddev: float) -> list[Any]:
    """A `SparseLinear` [B, units] of each id space, its rows drawn with `stddev`."""
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


def linear(spaces: Sequence[Space], units: int, name: str, stddev: float) -> Any:
    """One linear layer over all id spaces together: the sum of `linear_parts`, [B, units]."""
    parts = linear_parts(spaces, units, name, stddev)
    return parts[0] if len(parts) == 1 else tf.keras.layers.Add(name=name)(parts)


def dense_net(x: Any, hidden: Sequence[int], dropout: float) -> Any:
    """Dense layers of these widths, some of whose outputs are dropped in training."""
    for width in hidden:
        x = tf.keras.layers.Dense(width, activation="relu")(x)
        x = tf.keras.layers.Dropout(dropout)(x)
    return x


def wide_and_deep(
    name: str, inputs: dict[str, Any], spaces: Sequence[Space], deep: Any, base: float
) -> tf.keras.Model:
    """The model [B, 1]: a logit of `deep`, which starts at `base`, plus one of each id alone."""
    start = tf.keras.initializers.Constant(base)
    deep = tf.keras.layers.Dense(1, bias_initializer=start, name="deep_logit")(deep)
    wide = linear(spaces, 1, "wide", 0.0)
    logit = tf.keras.layers.Add(name="logit")([deep, wide])
    probability = tf.keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logit)
    return tf.keras.Model(inputs, probability, name=name)
