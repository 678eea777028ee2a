"""Which entries of a batch are which feature."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.analysis.category_columns import Known, columns_of

Array = npt.NDArray[Any]
Features = dict[str, tf.RaggedTensor]
MAX_SPARSE = 40


class Entries(NamedTuple):
    """The features of one group.

    Attributes:
        group: continuous, categorical or sparse.
        keys: those of the batch that share their row splits (ids and values).
        features: name → mask over the entries.
    """

    group: str
    keys: tuple[str, ...]
    features: dict[str, Array]


def sample_of(dataset: tf.data.Dataset, rows: int) -> tuple[Features, Array] | None:
    """The first `rows` examples of (features, labels [B, 1]) as one batch; labels are [rows].

    None if there are none.
    """
    for features, labels in dataset.unbatch().batch(rows).take(1) if rows else ():
        return features, labels.numpy().reshape(-1)
    return None


def entries_of(features: Features, schema: Any, known: Known | None = None) -> list[Entries]:
    """The entries of every continuous and categorical feature, and of the sparse ones.

    Sparse ids have no names: the MAX_SPARSE most frequent are called `id 7`.

    Args:
        features: a batch.
        schema: names of the continuous and categorical features.
        known: columns of categories that are known from elsewhere.
    """
    groups = []
    if schema.continuous:
        ids = features["continuous_ids"].flat_values.numpy()
        masks = {name: ids == i for i, name in enumerate(schema.continuous)}
        groups.append(Entries("continuous", ("continuous_ids", "continuous_values"), masks))
    if schema.categorical:
        ids = features["categorical_ids"]
        splits, flat = ids.row_splits.numpy(), ids.flat_values.numpy()
        column = columns_of(splits, flat, len(schema.categorical), known)
        masks = {name: column == i for i, name in enumerate(schema.categorical)}
        groups.append(Entries("categorical", ("categorical_ids",), masks))
    if schema.sparse_dim:
        ids = features["sparse_ids"].flat_values.numpy()
        unique, counts = np.unique(ids, return_counts=True)
        top = np.sort(unique[np.argsort(-counts, kind="stable")][:MAX_SPARSE])
        masks = {f"id {i}": ids == i for i in top}
        groups.append(Entries("sparse", ("sparse_ids", "sparse_values"), masks))
    return groups
