"""Norms of the weights that a model has learned for each feature in its `SparseLinear` layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import parse
from twml_ops.analysis.feature_groups import Array, FeatureGroup, Features
from twml_ops.analysis.scoring import compiled
from twml_ops.layers import SparseLinear


def weight_norms(
    model: tf.keras.Model, features: Features, groups: list[FeatureGroup]
) -> dict[str, float]:
    """Computes the root mean square norm of the weights that the entries of each feature read.

    The weights of an entry are the rows that it reads in all `SparseLinear` layers together. The
    norm of a feature is √(mean over its entries of the sum over these rows of |row|²), so frequent
    values have more influence. The entries of one feature at a time are passed through the model up
    to its `SparseLinear` layers, so layers before those (buckets, hashes, norms) are applied. If
    models are nested in the model, as in an ensemble, the mean square is also one over these.

    Args:
        model: a functional model.
        features: a batch of examples.
        groups: its features, as `feature_groups` returns them.

    Returns:
        Norm by name of the feature; NaN if it has no entries in the batch, or if its entries reach
        no `SparseLinear` layer, as entries of the layout "fields" do not.
    """
    parts = [layer for layer in model.layers if isinstance(layer, tf.keras.Model)] or [model]
    squares_of = [squares for part in parts if (squares := _squares_of(part))]
    norms = {name: math.nan for group in groups for name in group.masks}
    if not squares_of:
        return norms
    for group in groups:
        if not isinstance(features[group.keys[0]], tf.RaggedTensor):
            continue
        for name, mask in group.masks.items():
            count = int(mask.sum())
            if not count:
                continue
            kept = _keep_only(features, group.keys, mask)
            total = sum(squares(kept) for squares in squares_of)
            norms[name] = math.sqrt(total / len(parts) / count)
    return norms


def _squares_of(model: tf.keras.Model) -> Callable[[Features], float] | None:
    """A function that sums the squared norms of the rows that a batch reads; None: of no layer."""
    linear = [
        layer for layer in model.layers if isinstance(layer, SparseLinear) and layer.trainable
    ]
    if not linear:
        return None
    batches = [tf.nest.flatten(layer.input) for layer in linear]
    probe = tf.keras.Model(model.input, [part for parts in batches for part in parts])

    def ids_of_batches(features: Features) -> list[Any]:
        found = iter(tf.nest.flatten(probe(features, training=False)))
        parts = [[next(found) for _ in of_layer] for of_layer in batches]
        return [parse(p if len(p) > 1 else p[0])[0].ids for p in parts]

    ids_of = compiled(ids_of_batches)

    def squares(features: Features) -> float:
        pairs = zip(linear, ids_of(features), strict=True)
        return sum(float(_squared_norms(layer, ids.numpy()).sum()) for layer, ids in pairs)

    return squares


def _keep_only(features: Features, keys: tuple[str, ...], mask: Array) -> Features:
    """The batch with only the masked entries of `keys`."""
    out = {}
    for key, ragged in features.items():
        if not isinstance(ragged, tf.RaggedTensor):
            out[key] = ragged
            continue
        kept = mask if key in keys else np.zeros(int(tf.size(ragged.flat_values)), bool)
        rows = ragged.value_rowids().numpy()[kept]
        lengths = np.bincount(rows, minlength=int(ragged.nrows()))
        values = tf.boolean_mask(ragged.flat_values, kept)
        out[key] = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
    return out


def _squared_norms(layer: SparseLinear, ids: Array) -> Array:
    """|W[id]|² of each id, float64 [K]. Only the rows of `ids` are read, not the whole table."""
    out = np.zeros(len(ids))
    for p, kernel in enumerate(layer.kernels):
        mine, row = np.ones(len(ids), bool), ids
        if layer.partition_axis == "row":
            mine, row = ids % layer.num_partitions == p, ids // layer.num_partitions
        splits = np.arange(int(mine.sum()) + 1)
        rows = ops.sparse_linear(row[mine], None, splits, kernel).numpy()
        out[mine] += np.square(rows, dtype=np.float64).sum(axis=1)
    return out
