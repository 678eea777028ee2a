"""A task as arrays, and a net on vectors of its fields, for the comparison of hash functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.published.task import (
    READ_BATCH_SIZE,
    Metrics,
    Settings,
    Task,
    normalized_entropy,
)
from twml_ops import layers, models, optimizers
from twml_ops.data import Source

SMALL = 64
"""The largest number of ids of a field whose table is not compressed."""
_STDDEV, _RATE, _L2, _HIDDEN = 0.02, 0.002, 0.1, 64


class Rows(NamedTuple):
    """A part of the data.

    Attributes:
        small: int64 [R, any], numbers of the categories of the small fields, from 0; -1: missing or
            not in the training part.
        large: int64 [R, any], ids of the other fields, which are hashes of the categories.
        numbers: float32 [R, any].
        labels: float32 [R, 1].
    """

    small: npt.NDArray[np.int64]
    large: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float32]


class Data(NamedTuple):
    """The parts of a task, and how many ids each field has in the training part."""

    train: Rows
    validation: Rows
    test: Rows
    num_small: list[int]
    num_large: list[int]


def read(task: Task) -> Data:
    """Reads a task."""
    parts = [_arrays(task, part) for part in (task.train, task.validation, task.test)]
    known = [np.unique(column[column >= 0]) for column in parts[0][0].T]
    small = [f for f, ids in enumerate(known) if len(ids) <= SMALL]
    large = [f for f, ids in enumerate(known) if len(ids) > SMALL]
    mean, deviation = parts[0][1].mean(axis=0), parts[0][1].std(axis=0) + 1e-6
    made = []
    for ids, numbers, labels in parts:
        exact = [_numbers_of(ids[:, f], known[f]) for f in small]
        columns = np.stack(exact, axis=1) if small else np.zeros((len(ids), 0), np.int64)
        scaled = ((numbers - mean) / deviation).astype(np.float32)
        made.append(Rows(columns, ids[:, large], scaled, labels))
    return Data(*made, [len(known[f]) for f in small], [len(known[f]) for f in large])


def _arrays(task: Task, part: Source) -> tuple[Any, Any, Any]:
    """(ids [R, F], logarithms of numbers and whether they are there [R, any], labels [R, 1])."""
    ids, numbers, labels = [], [], []
    for features, y, *_ in task.batches(part, models.get("dlrm"), READ_BATCH_SIZE):
        ids.append(features["categorical"].numpy())
        of_batch = np.zeros((len(ids[-1]), 0), np.float32)
        if "continuous" in features:
            x, present = (features[n].numpy() for n in ("continuous", "continuous_present"))
            x = np.where(present, x, 0)
            of_batch = np.concatenate([np.sign(x) * np.log1p(np.abs(x)), present], axis=1)
        numbers.append(of_batch)
        labels.append(np.reshape(y, (-1, 1)).astype(np.float32))
    return np.concatenate(ids), np.concatenate(numbers), np.concatenate(labels)


def _numbers_of(ids: npt.NDArray[np.int64], known: npt.NDArray[np.int64]) -> Any:
    position = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[position] == ids, position, -1)


def model_of(data: Data, units: int, vectors: Callable[[Any], Any], seed: int) -> tf.keras.Model:
    """A dense net on vectors, their dot products and the numbers.

    Args:
        data: what the model is for.
        units: D, width of the vectors.
        vectors: function of the ids [B, fields] of the large fields: their vectors
            [B, fields, D].
        seed: the seed of the weights.
    """
    tf.keras.utils.set_random_seed(seed)
    inputs = [
        tf.keras.Input((part.shape[1],), dtype=part.dtype.name)
        for part in (data.train.small, data.train.large, data.train.numbers)
    ]
    found = vectors(inputs[1])
    if data.num_small:
        exact = embedding(data.num_small, units)(inputs[0])
        found = tf.keras.layers.Concatenate(axis=1)([found, exact])
    parts = [tf.keras.layers.Flatten()(found), layers.DotInteraction()(found)]
    if data.train.numbers.shape[1]:
        parts.append(inputs[2])
    x = tf.keras.layers.Dense(_HIDDEN, "relu")(tf.keras.layers.Concatenate()(parts))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, "sigmoid")(x))


def embedding(num_rows: list[int], units: int, mean: float = 0.0) -> layers.FieldEmbedding:
    """A table with as many rows of ids for each field, and one for missing values.

    Args:
        num_rows: the number of rows of each field.
        units: width of the vectors.
        mean: the mean of the initial vectors, which are regularized if it is 0.
    """
    initializer = tf.keras.initializers.RandomNormal(mean, _STDDEV)
    return layers.FieldEmbedding(
        [1 + n for n in num_rows],
        units,
        embeddings_initializer=initializer,
        l2=0.0 if mean else _L2,
        out_of_range="wrap",
    )


def train(model: tf.keras.Model, data: Data, seed: int, settings: Settings) -> Metrics:
    """Trains a model with Adam.

    Returns:
        `entropy` on the test part after the epoch with the `lowest` one on the validation part, and
        that number of `epochs`. The model has the weights of this epoch.
    """
    model.compile(optimizers.LazyAdam(_RATE), "binary_crossentropy", jit_compile=False)
    batches = _batches(data.train, settings.batch_size, seed)
    entropies: list[float] = []
    weights: Any = None
    for _ in range(settings.epochs):
        model.fit(batches, epochs=1, verbose=0, shuffle=False)
        entropies.append(_entropy(model, data.validation))
        if entropies[-1] == min(entropies):
            weights = model.get_weights()
    model.set_weights(weights)
    lowest = min(entropies)
    return {
        "entropy": _entropy(model, data.test),
        "lowest": lowest,
        "epochs": 1.0 + entropies.index(lowest),
    }


def _batches(rows: Rows, batch_size: int, seed: int) -> tf.data.Dataset:
    """The rows in an order that is another one each time."""
    *features, labels = (tf.constant(array) for array in rows)
    order = tf.data.Dataset.range(len(rows.labels))
    order = order.shuffle(len(rows.labels), seed, reshuffle_each_iteration=True).batch(batch_size)
    return order.map(
        lambda i: (tuple(tf.gather(x, i) for x in features), tf.gather(labels, i))
    ).prefetch(2)


def _entropy(model: tf.keras.Model, rows: Rows) -> float:
    predicted = [
        np.asarray(model([x[i : i + READ_BATCH_SIZE] for x in rows[:3]], training=False))
        for i in range(0, len(rows.labels), READ_BATCH_SIZE)
    ]
    return normalized_entropy(rows.labels, np.concatenate(predicted))
