"""The reference ranking model: one very wide sparse-linear layer, then a small dense net.

continuous ──┬─ buckets ──────┐
             └─ max norm ─────┤
categorical ─── hash ─────────┼─ sparse linear ─ relu ─ dense net ─┐
sparse ──────── max norm ─────┤                                   (+)─ sigmoid
                              └─ sparse linear, 1 unit ────────────┘
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.layers import MaxNorm, PercentileDiscretizer, SparseLinear
from twml_ops.models.hashed_ids import HashedIds


class _Space(NamedTuple):
    """A batch in an id space of its own."""

    name: str
    batch: Any
    size: int


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
    """Builds the model, wide and deep (Cheng et al., 2016), for the features of `schema`.

    Every id space (buckets, normalized numbers, hashed categories, raw sparse ids) has its own
    `SparseLinear`; their sum is the one big layer on the concatenation of the spaces.

    Args:
        schema: says which groups of features there are.
        dataset: batches of (features, labels) to adapt the discretizer on: the training data.
        units: width of the first layer.
        hidden: widths of the dense layers that follow.
        dropout: share of the outputs of these layers that are dropped in training.
        num_bins: buckets per continuous feature.
        discretize: whether continuous features go in as buckets too, beside their numbers.
        categorical_bits: categories are hashed into 2^categorical_bits ids.
        stddev: of the initial rows of the first layer.

    Returns:
        An uncompiled model: dict of ragged features, named as in `Source.dataset` → [B, 1].

    Raises:
        ValueError: the schema has no features.
    """
    inputs: dict[str, Any] = {}
    spaces: list[_Space] = []
    if schema.continuous:
        numbers = _inputs(inputs, continuous_ids="int64", continuous_values="float32")
        normalized = MaxNorm(len(schema.continuous), name="continuous_norm")(numbers)
        if discretize:
            buckets = PercentileDiscretizer(num_bins, unknown="drop", name="buckets")
            buckets.adapt(dataset.map(lambda f, _: (f["continuous_ids"], f["continuous_values"])))
            spaces.append(_Space("buckets", buckets(numbers), buckets.output_dim))
        spaces.append(_Space("continuous", normalized, len(schema.continuous)))
    if schema.categorical:
        (ids,) = _inputs(inputs, categorical_ids="int64")
        hashed = HashedIds(categorical_bits, name="categorical_hash")
        spaces.append(_Space("categorical", hashed(ids), hashed.output_dim))
    if schema.sparse_dim:
        raw = _inputs(inputs, sparse_ids="int64", sparse_values="float32")
        normalized = MaxNorm(schema.sparse_dim, name="sparse_norm")(raw)
        spaces.append(_Space("sparse", normalized, schema.sparse_dim))
    if not spaces:
        raise ValueError("schema must have at least one feature, got none")

    deep = tf.keras.layers.Activation("relu", name="first")(_linear(spaces, units, "deep", stddev))
    deep = tf.keras.layers.Dropout(dropout)(deep)
    for width in hidden:
        deep = tf.keras.layers.Dense(width, activation="relu")(deep)
        deep = tf.keras.layers.Dropout(dropout)(deep)
    base = tf.keras.initializers.Constant(_base_logit(dataset))
    deep = tf.keras.layers.Dense(1, bias_initializer=base, name="deep_logit")(deep)
    wide = _linear(spaces, 1, "wide", 0.0)
    logit = tf.keras.layers.Add(name="logit")([deep, wide])
    probability = tf.keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logit)
    return tf.keras.Model(inputs, probability, name="sparse_mlp")


def _base_logit(dataset: tf.data.Dataset) -> float:
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


def _linear(spaces: Sequence[_Space], units: int, name: str, stddev: float) -> Any:
    """One linear layer over all id spaces together, its rows drawn with `stddev`: [B, units]."""
    parts = [
        SparseLinear(
            units,
            space.size,
            use_bias=space is spaces[0],
            kernel_initializer=tf.keras.initializers.RandomNormal(stddev=stddev),
            name=f"{name}_{space.name}",
        )(space.batch)
        for space in spaces
    ]
    return parts[0] if len(parts) == 1 else tf.keras.layers.Add(name=name)(parts)
