"""Permutation importance: the increase of the log loss when a feature is permuted over the rows.

The importance of feature j is L(y, f(X with j permuted)) − L(y, f(X)), where f is the model and L
the log loss (Breiman, "Random Forests", Machine Learning 45, 2001). On sparse rows the entries of
the feature move to other rows while all other entries stay. There is no loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops.analysis.feature_groups import (
    Array,
    FeatureGroup,
    Features,
    feature_groups,
    take_sample,
)
from twml_ops.analysis.scoring import log_loss
from twml_ops.data import Source
from twml_ops.data.layouts import LayoutName


class FeatureImportance(NamedTuple):
    """The permutation importance of a feature.

    Attributes:
        name: name of the feature.
        importance: increase of the log loss when the feature is permuted; near 0 or negative if the
            model does not use it.
    """

    name: str
    importance: float


def permutation_importance(
    predict: Callable[[Features], Array],
    source: Source,
    rows: int = 8192,
    seed: int = 0,
    *,
    layout: LayoutName = "ragged",
    sample_seed: int | None = None,
) -> list[FeatureImportance]:
    """Computes the permutation importance of each feature on a sample of a data set.

    Args:
        predict: features of a batch → probabilities [B], of several labels [B, number of labels];
            see `predictor`.
        source: the data set.
        rows: size of the sample.
        seed: seed of the permutation, which is the same for all features.
        layout: the layout of the batch that `predict` takes; see `Source.dataset`.
        sample_seed: the seed of the order in which the sample is taken; None: the first examples.

    Returns:
        The features in descending order of importance, with several labels the mean over them: each
        continuous and categorical feature, and the most frequent sparse ids of the sample (at most
        40), named `id 7`, … Empty if the data set has no examples.
    """
    sample = take_sample(source, rows, layout, sample_seed)
    if sample is None:
        return []
    groups = feature_groups(sample.features, source.schema, sample.category_columns)
    return batch_importance(predict, sample.features, sample.labels, groups, seed)


def batch_importance(
    predict: Callable[[Features], Array],
    features: Features,
    y: Array,
    groups: list[FeatureGroup],
    seed: int = 0,
) -> list[FeatureImportance]:
    """Computes the permutation importance of each feature of one batch.

    Args:
        predict: features of a batch → probabilities [B], of several labels [B, number of labels].
        features: the batch.
        y: its labels, of the same shape.
        groups: its features, as `feature_groups` returns them.
        seed: seed of the permutation, which is the same for all features.

    Returns:
        The features in descending order of importance.
    """
    base = log_loss(y, predict(features))
    order = np.random.default_rng(seed).permutation(len(y))
    importances = []
    for group in groups:
        for name, mask in group.masks.items():
            permuted = _permute(features, group.keys, mask, order)
            importances.append(FeatureImportance(name, log_loss(y, predict(permuted)) - base))
    return sorted(importances, key=lambda f: -f.importance)


def _permute(features: Features, keys: tuple[str, ...], mask: Array, order: Array) -> Features:
    """`features` with the masked entries of row order[r] moved to row r."""
    if not isinstance(features[keys[0]], tf.RaggedTensor):
        return {**features, **{key: _permute_matrix(features[key], mask, order) for key in keys}}
    lengths = np.diff(features[keys[0]].row_splits.numpy())
    # A stable sort of 16-bit integers is a radix sort.
    rows = np.arange(len(order), dtype=np.min_scalar_type(len(order)))
    place = np.empty_like(rows)
    place[order] = rows
    moved = np.where(mask, np.repeat(place, lengths), np.repeat(rows, lengths))
    entries = np.argsort(moved, kind="stable")
    splits = np.concatenate([[0], np.cumsum(np.bincount(moved, minlength=len(order)))])
    new = {
        key: tf.RaggedTensor.from_row_splits(
            tf.constant(features[key].flat_values.numpy()[entries]), splits, validate=False
        )
        for key in keys
    }
    return {**features, **new}


def _permute_matrix(matrix: tf.Tensor, mask: Array, order: Array) -> tf.Tensor:
    """`matrix` with the masked entries of row order[r] in row r. The mask is one of columns."""
    values = matrix.numpy()
    return tf.constant(np.where(mask.reshape(values.shape), values[order], values))
