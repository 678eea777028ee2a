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

from twml_ops.cli.scoring import log_loss

Array = npt.NDArray[Any]
Features = dict[str, tf.RaggedTensor]
MAX_SPARSE = 40


class Worth(NamedTuple):
    """A feature and the log loss added by shuffling it."""

    name: str
    loss: float


class _Block(NamedTuple):
    """Keys that share their row splits (ids and values), and which entries are which feature."""

    keys: tuple[str, ...]
    features: dict[str, Array]  # name → mask over the entries


def importance(
    predict: Callable[[Features], Array],
    dataset: tf.data.Dataset,
    schema: Any,
    rows: int = 8192,
    seed: int = 0,
) -> list[Worth]:
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
    sample = list(dataset.unbatch().batch(rows).take(1)) if rows else []
    if not sample:
        return []
    features, labels = sample[0]
    y = labels.numpy().reshape(-1)
    before = log_loss(y, predict(features))
    order = np.random.default_rng(seed).permutation(len(y))
    worth = []
    for block in _blocks(features, schema):
        for name, mask in block.features.items():
            shuffled = _shuffle(features, block.keys, mask, order)
            loss = log_loss(y, predict(shuffled))
            worth.append(Worth(name, loss - before))
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


def _blocks(features: Features, schema: Any) -> list[_Block]:
    blocks = []
    if schema.continuous:
        ids = features["continuous_ids"].flat_values.numpy()
        masks = {name: ids == i for i, name in enumerate(schema.continuous)}
        blocks.append(_Block(("continuous_ids", "continuous_values"), masks))
    if schema.categorical:
        masks = _categorical(features["categorical_ids"], schema.categorical)
        blocks.append(_Block(("categorical_ids",), masks))
    if schema.sparse_dim:
        ids = features["sparse_ids"].flat_values.numpy()
        unique, counts = np.unique(ids, return_counts=True)
        top = np.sort(unique[np.argsort(-counts, kind="stable")][:MAX_SPARSE])
        masks = {f"id {i}": ids == i for i in top}
        blocks.append(_Block(("sparse_ids", "sparse_values"), masks))
    return blocks


def _categorical(ids: tf.RaggedTensor, names: tuple[str, ...]) -> dict[str, Array]:
    """Which entries are which column; the hashes do not tell, the order of the columns does.

    The k-th of n entries in a row of C columns is at least column k and at most k + C − n. A hash
    belongs to one column, so the bounds of all its entries meet, and neighbours in a row push them
    further. Entries that stay undecided (rare values in rows with much missing) belong to none.
    """
    rows, lengths = ids.value_rowids().numpy(), ids.row_lengths().numpy()
    _, value = np.unique(ids.flat_values.numpy(), return_inverse=True)
    position = np.arange(len(rows)) - ids.row_starts().numpy()[rows]
    low, high = position, position + len(names) - lengths[rows]
    same_row = rows[1:] == rows[:-1]
    for _ in range(4):
        low, high = _meet(low, value, np.maximum), _meet(high, value, np.minimum)
        low[1:] = np.where(same_row, np.maximum(low[1:], low[:-1] + 1), low[1:])
        high[:-1] = np.where(same_row, np.minimum(high[:-1], high[1:] - 1), high[:-1])
    column = np.where(low == high, low, -1)
    return {name: column == i for i, name in enumerate(names)}


def _meet(bounds: Array, value: Array, tighter: np.ufunc) -> Array:
    """The tightest bound of each value, given to all its entries."""
    best = np.full(
        value.max(initial=-1) + 1, -1 if tighter is np.maximum else np.iinfo(np.int64).max
    )
    tighter.at(best, value, bounds)
    return best[value]
