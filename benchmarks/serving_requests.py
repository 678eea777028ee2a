"""The model of benchmarks/serving.py, its requests, and the labels that it is trained on."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.models import sparse_mlp
from twml_ops.optimizers import Adagrad

SCHEMA = Schema(tuple(f"n{i}" for i in range(13)), tuple(f"c{i}" for i in range(26)), 1 << 18, "x")
SPARSE_PER_ROW = 150
SIGNALS = (30, 50, 70, 90)  # sparse features that the labels depend on


def make_request(rows: int, seed: int) -> dict[str, np.ndarray]:
    """The flat arrays of a request, with all columns and SPARSE_PER_ROW sparse features per row."""
    rng = np.random.default_rng(seed)
    numbers, categories = len(SCHEMA.continuous), len(SCHEMA.categorical)
    sparse = np.minimum(rng.zipf(1.3, (rows, SPARSE_PER_ROW)), SCHEMA.sparse_dim) - 1
    return {
        "continuous_ids": np.tile(np.arange(numbers), rows),
        "continuous_values": rng.normal(size=rows * numbers).astype(np.float32),
        "continuous_row_splits": np.arange(rows + 1) * numbers,
        "categorical_ids": rng.integers(0, 1 << 40, rows * categories),
        "categorical_row_splits": np.arange(rows + 1) * categories,
        "sparse_ids": sparse.ravel(),
        "sparse_values": rng.random(rows * SPARSE_PER_ROW).astype(np.float32),
        "sparse_row_splits": np.arange(rows + 1) * SPARSE_PER_ROW,
    }


def ragged_features(flat: dict[str, np.ndarray]) -> dict[str, tf.RaggedTensor]:
    """Converts the flat arrays to the inputs of the Keras model."""
    return {
        name: tf.RaggedTensor.from_row_splits(
            flat[name], flat[f"{name.rsplit('_', 1)[0]}_row_splits"]
        )
        for name in flat
        if not name.endswith("row_splits")
    }


def labels_of(flat: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Random labels that depend on two numbers and on `SIGNALS`."""
    rows = len(flat["sparse_row_splits"]) - 1
    numbers = flat["continuous_values"].reshape(rows, -1)
    logit = 2 * numbers[:, 0] - numbers[:, 1] * np.abs(numbers[:, 1])
    logit = logit + signals_of(flat) @ np.array([2, -2, 2, -2])
    return np.random.default_rng(seed).random(rows) < 1 / (1 + np.exp(-logit))


def signals_of(flat: dict[str, np.ndarray]) -> np.ndarray:
    """Which rows have the sparse features that the labels depend on, [B, 4]."""
    rows = len(flat["sparse_row_splits"]) - 1
    sparse = flat["sparse_ids"].reshape(rows, -1)
    return np.stack([(sparse == signal).any(1) for signal in SIGNALS], axis=1)


def train_model(rows: int, epochs: int) -> tf.keras.Model:
    """Trains the model on random examples."""
    flat = make_request(rows, 0)
    labels = labels_of(flat, 0).astype(np.float32)[:, None]
    data = tf.data.Dataset.from_tensor_slices((ragged_features(flat), labels)).batch(200)
    tf.keras.utils.set_random_seed(0)
    model = sparse_mlp(SCHEMA, data)
    model.compile(Adagrad(0.05), "binary_crossentropy", jit_compile=False)
    model.fit(data, epochs=epochs, verbose=0)
    return model
