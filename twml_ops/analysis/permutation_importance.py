"""What each feature is worth: the log loss added when its column is shuffled over the rows.

Permutation importance (Breiman, "Random Forests", 2001), on entries of sparse rows: a feature's
entries move to other rows, the others stay. No loop over rows anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops.analysis.feature_masks import Entries, Features, entries_of, sample_of
from twml_ops.analysis.scoring import log_loss

Array = npt.NDArray[Any]


class FeatureImportance(NamedTuple):
    """A feature and the log loss added by shuffling it."""

    name: str
    loss: float


def permutation_importance(
    predict: Callable[[Features], Array],
    dataset: tf.data.Dataset,
    schema: Any,
    rows: int = 8192,
    seed: int = 0,
) -> list[FeatureImportance]:
    """What each feature of `dataset` is worth to a model, the most useful first.

    Args:
        predict: features of a batch → probabilities [B].
        dataset: batches of (features, labels [B, 1]); its first `rows` examples are used, as one
            batch.
        schema: names of the continuous and categorical features.
        rows: size of the sample.
        seed: of the permutation, the same for every feature.

    Returns:
        Every continuous and categorical feature, and the MAX_SPARSE most frequent sparse ids, which
        have no names and are called `id 7`.
    """
    sample = sample_of(dataset, rows)
    if sample is None:
        return []
    features, labels = sample
    return batch_importance(predict, features, labels, entries_of(features, schema), seed)


def batch_importance(
    predict: Callable[[Features], Array],
    features: Features,
    y: Array,
    groups: list[Entries],
    seed: int = 0,
) -> list[FeatureImportance]:
    """As `permutation_importance`, of one batch whose entries are known.

    Args:
        predict: features of a batch → probabilities [B].
        features: the batch.
        y: labels [B].
        groups: its entries, as `entries_of` gives them.
        seed: of the permutation, the same for every feature.
    """
    before = log_loss(y, predict(features))
    order = np.random.default_rng(seed).permutation(len(y))
    worth = []
    for group in groups:
        for name, mask in group.features.items():
            shuffled = _shuffle(features, group.keys, mask, order)
            loss = log_loss(y, predict(shuffled))
            worth.append(FeatureImportance(name, loss - before))
    return sorted(worth, key=lambda w: -w.loss)


def _shuffle(features: Features, keys: tuple[str, ...], mask: Array, order: Array) -> Features:
    """`features` with the masked entries of row order[r] moved to row r."""
    rows = features[keys[0]].value_rowids().numpy()
    place = np.argsort(order)
    moved = np.where(mask, place[rows], rows)
    entries = np.argsort(moved, kind="stable")
    splits = np.concatenate([[0], np.cumsum(np.bincount(moved, minlength=len(order)))])
    new = {
        key: tf.RaggedTensor.from_row_splits(
            tf.gather(features[key].flat_values, entries), splits, validate=False
        )
        for key in keys
    }
    return {**features, **new}
