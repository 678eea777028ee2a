"""Which entries of a batch belong to which feature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.analysis.category_columns import Array, KnownColumns, infer_columns
from twml_ops.data import Schema

Features = dict[str, tf.RaggedTensor]
MAX_SPARSE = 40


class FeatureGroup(NamedTuple):
    """The features of one group, and which entries of a batch belong to each.

    Attributes:
        name: "continuous", "categorical" or "sparse".
        keys: keys of the batch that hold the entries of the group. They share their row splits.
        masks: name of a feature → bool [K] over the K entries of the group.
    """

    name: str
    keys: tuple[str, ...]
    masks: dict[str, Array]


def take_sample(dataset: tf.data.Dataset, rows: int) -> tuple[Features, Array] | None:
    """Takes the first examples of a data set as one batch.

    Args:
        dataset: batches of (features, labels [B, 1]).
        rows: number of examples to take at most.

    Returns:
        (features, labels [R]) with R ≤ `rows`, or None if there are no examples.
    """
    for features, labels in dataset.unbatch().batch(rows).take(1) if rows else ():
        return features, labels.numpy().reshape(-1)
    return None


def feature_groups(
    features: Features, schema: Schema, known: KnownColumns | None = None
) -> list[FeatureGroup]:
    """Finds the entries of each feature in a batch.

    Sparse ids have no names: the `MAX_SPARSE` most frequent ids of the batch are features with the
    names `id 7`, … Categories carry no column either: their columns are inferred from their order.

    Args:
        features: a batch.
        schema: names of the continuous and categorical features.
        known: columns of categories that are known from other data; None: none.

    Returns:
        One group for each kind of features in the schema.
    """
    groups = []
    if schema.continuous:
        ids = features["continuous_ids"].flat_values.numpy()
        masks = {name: ids == i for i, name in enumerate(schema.continuous)}
        groups.append(FeatureGroup("continuous", ("continuous_ids", "continuous_values"), masks))
    if schema.categorical:
        ids = features["categorical_ids"]
        splits, flat = ids.row_splits.numpy(), ids.flat_values.numpy()
        columns = infer_columns(splits, flat, len(schema.categorical), known)
        masks = {name: columns == i for i, name in enumerate(schema.categorical)}
        groups.append(FeatureGroup("categorical", ("categorical_ids",), masks))
    if schema.sparse_dim:
        ids = features["sparse_ids"].flat_values.numpy()
        unique, counts = np.unique(ids, return_counts=True)
        frequent = np.sort(unique[np.argsort(-counts, kind="stable")][:MAX_SPARSE])
        masks = {f"id {i}": ids == i for i in frequent}
        groups.append(FeatureGroup("sparse", ("sparse_ids", "sparse_values"), masks))
    return groups
