"""Which entries of a batch belong to which feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.analysis.category_columns import Array, KnownColumns, infer_columns
from twml_ops.analysis.scoring import by_column
from twml_ops.data import Schema
from twml_ops.data.layouts import bag_name

Features = dict[str, Any]  # name → tf.RaggedTensor, or tf.Tensor in the layout "fields"
MAX_SPARSE = 40


class FeatureGroup(NamedTuple):
    """The features of one group, and which entries of a batch belong to each.

    Attributes:
        name: "continuous", "categorical" or "sparse".
        keys: keys of the batch that hold the entries of the group: ragged tensors that share their
            row splits, or matrices of one shape.
        masks: name of a feature → bool [K] over the K entries of the group, row by row.
    """

    name: str
    keys: tuple[str, ...]
    masks: dict[str, Array]


def take_sample(
    dataset: tf.data.Dataset, rows: int, names: Sequence[str] = ("label",)
) -> tuple[Features, Array] | None:
    """Takes the first examples of a data set as one batch.

    Args:
        dataset: batches of (features, labels [B, 1]), in which several labels are a dict; sample
            weights after them are not used.
        rows: number of examples to take at most.
        names: names of the labels.

    Returns:
        (features, labels [R]) with R ≤ `rows`, of several labels [R, number of labels]; or None if
        there are no examples.
    """
    for features, labels, *_ in dataset.unbatch().batch(rows).take(1) if rows else ():
        columns = by_column(labels, names)
        return features, columns if len(names) > 1 else columns.reshape(-1)
    return None


def feature_groups(
    features: Features, schema: Schema, known: KnownColumns | None = None
) -> list[FeatureGroup]:
    """Finds the entries of each feature in a batch.

    Sparse ids have no names: the `MAX_SPARSE` most frequent ids of the batch are features with the
    names `id 7`, … In the layout "ragged" categories carry no column either: their columns are
    inferred from their order.

    Args:
        features: a batch.
        schema: names of the continuous and categorical features.
        known: columns of categories that are known from other data; None: none.

    Returns:
        One group for each kind of features in the schema.
    """
    groups = _matrices(features, schema)
    if "continuous_ids" in features:
        ids = features["continuous_ids"].flat_values.numpy()
        masks = {name: ids == i for i, name in enumerate(schema.continuous)}
        groups.append(FeatureGroup("continuous", ("continuous_ids", "continuous_values"), masks))
    if "categorical_ids" in features:
        ids = features["categorical_ids"]
        splits, flat = ids.row_splits.numpy(), ids.flat_values.numpy()
        columns = infer_columns(splits, flat, len(schema.categorical), known)
        masks = {name: columns == i for i, name in enumerate(schema.categorical)}
        groups.append(FeatureGroup("categorical", ("categorical_ids",), masks))
    if "sparse_ids" in features:
        ids = features["sparse_ids"].flat_values.numpy()
        unique, counts = np.unique(ids, return_counts=True)
        frequent = np.sort(unique[np.argsort(-counts, kind="stable")][:MAX_SPARSE])
        masks = {f"id {i}": ids == i for i in frequent}
        groups.append(FeatureGroup("sparse", ("sparse_ids", "sparse_values"), masks))
    return groups


def _matrices(features: Features, schema: Schema) -> list[FeatureGroup]:
    """The groups of the layout "fields", apart from raw sparse ids."""
    groups = []
    for name, keys, columns in (
        ("continuous", ("continuous", "continuous_present"), schema.continuous),
        ("categorical", ("categorical",), schema.fields),
    ):
        if name in features:
            entries = np.arange(len(columns) * int(features[name].shape[0])) % len(columns)
            masks = {column: entries == i for i, column in enumerate(columns)}
            groups.append(FeatureGroup(name, keys, masks))
    for bag in schema.bags:
        names = [f"{bag_name(bag)}_{part}" for part in ("ids", "values")]
        found = tuple(name for name in names if name in features)
        if found:
            entries = np.ones(len(features[found[0]].flat_values), bool)
            groups.append(FeatureGroup("categorical", found, {bag: entries}))
    return groups
