"""The norms of what a model has learned of each feature: its rows of the sparse-linear layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import parse
from twml_ops.analysis.feature_masks import Entries, Features
from twml_ops.analysis.scoring import compiled
from twml_ops.layers import SparseLinear

Array = npt.NDArray[Any]


def weight_norms(
    model: tf.keras.Model, features: Features, groups: list[Entries]
) -> dict[str, float]:
    """The typical length of the weights that an entry of each feature reads.

    The entries of one feature at a time go through the model up to its `SparseLinear` layers, so
    whatever turns them into ids on the way (buckets, hashes, norms) is that of the model. The
    weights of an entry are the rows it reads, of all these layers together; the result is the
    root mean square of their norms over the entries, so frequent values count more.

    Args:
        model: a functional model.
        features: the batch that is looked at.
        groups: its entries, as `entries_of` gives them.

    Returns:
        By name; NaN for a feature without entries, or of a model without `SparseLinear`.
    """
    linear = [layer for layer in model.layers if isinstance(layer, SparseLinear)]
    names = [name for group in groups for name in group.features]
    if not linear:
        return dict.fromkeys(names, math.nan)
    probe = tf.keras.Model(model.input, [layer.input for layer in linear])
    ids_of = compiled(lambda f: [parse(batch)[0].ids for batch in probe(f, training=False)])
    norms = {}
    for group in groups:
        for name, mask in group.features.items():
            count = int(mask.sum())
            ids = ids_of(_only(features, group.keys, mask)) if count else []
            pairs = zip(linear, ids, strict=False)
            squares = sum(float(_squared_norms(layer, i.numpy()).sum()) for layer, i in pairs)
            norms[name] = math.sqrt(squares / count) if count else math.nan
    return norms


def _only(features: Features, keys: tuple[str, ...], mask: Array) -> Features:
    """The batch with nothing but the masked entries of `keys`."""
    out = {}
    for key, ragged in features.items():
        kept = mask if key in keys else np.zeros(int(tf.size(ragged.flat_values)), bool)
        rows = ragged.value_rowids().numpy()[kept]
        lengths = np.bincount(rows, minlength=int(ragged.nrows()))
        values = tf.boolean_mask(ragged.flat_values, kept)
        out[key] = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
    return out


def _squared_norms(layer: SparseLinear, ids: Array) -> Array:
    """|W[id]|² of each id, float64; reads the rows it needs, not the table."""
    out = np.zeros(len(ids))
    for p, kernel in enumerate(layer.kernels):
        mine, row = np.ones(len(ids), bool), ids
        if layer.partition_axis == "row":
            mine, row = ids % layer.num_partitions == p, ids // layer.num_partitions
        splits = np.arange(int(mine.sum()) + 1)
        rows = ops.sparse_linear(row[mine], None, splits, kernel).numpy()
        out[mine] += np.square(rows, dtype=np.float64).sum(axis=1)
    return out
