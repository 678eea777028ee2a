"""Latency of a request: the scorer without TensorFlow, and TensorFlow's `serving_default`.

    python -m benchmarks.serving [--rows 1 20 200] [--rounds 100]

All contenders run in one process, interleaved. The model is `sparse_mlp` on random features: 13
continuous, 26 categorical and 150 of 2^18 sparse features per row. A request consists of the flat
arrays of its rows, and the answer of their probabilities. `stock` is a SavedModel of stock ops;
`fast` is one with the ops of this package. Their signature is called as a server would do it, with
tensors made from the arrays. At the end the script prints the errors of int8 and bfloat16 tables.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import machine, timing
from twml_ops import export
from twml_ops.core import Scorer
from twml_ops.data import Schema
from twml_ops.models import sparse_mlp
from twml_ops.optimizers import Adagrad

SCHEMA = Schema(tuple(f"n{i}" for i in range(13)), tuple(f"c{i}" for i in range(26)), 1 << 18, "x")
SPARSE_PER_ROW = 150
FORMATS = ("float32", "bfloat16", "int8")


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


def train_model(rows: int = 2000) -> tf.keras.Model:
    """Trains the model for two epochs on random labels that depend on the features."""
    flat = make_request(rows, 0)
    first = flat["continuous_values"].reshape(rows, -1)[:, 0]
    sparse = flat["sparse_ids"].reshape(rows, -1)
    labels = (first + (sparse == 7).any(1) > 0.5).astype(np.float32)[:, None]
    data = tf.data.Dataset.from_tensor_slices((ragged_features(flat), labels)).batch(200)
    tf.keras.utils.set_random_seed(0)
    model = sparse_mlp(SCHEMA, data)
    model.compile(Adagrad(0.05), "binary_crossentropy", jit_compile=False)
    model.fit(data, epochs=2, verbose=0)
    return model


def contenders(model: tf.keras.Model, folder: Path) -> dict[str, Any]:
    """Exports the model; returns name -> function from the arrays of a request to the answer."""
    export.to_scorer(model, folder / "scorer")
    export.to_tf(model, folder / "fast")
    export.to_stock_tf(model, folder / "stock")
    calls: dict[str, Any] = {"scorer": Scorer.load(folder / "scorer").predict}
    for name in ("fast", "stock"):
        serve = tf.saved_model.load(str(folder / name)).signatures["serving_default"]

        def call(flat: dict[str, np.ndarray], serve: Any = serve) -> np.ndarray:
            return serve(**{k: tf.constant(v) for k, v in flat.items()})["probability"].numpy()

        calls[f"TensorFlow, {name}"] = call
    return calls


def time_requests(model: tf.keras.Model, row_counts: list[int], rounds: int) -> None:
    """Prints one line per contender and size of request."""
    with tempfile.TemporaryDirectory() as folder:
        calls = contenders(model, Path(folder))
    for rows in row_counts:
        requests = [make_request(rows, seed) for seed in range(1, 9)]
        expected = model(ragged_features(requests[0])).numpy()
        for name, call in calls.items():
            worst = np.abs(call(requests[0]) - expected).max()
            assert worst < 1e-6, (name, worst)
        runs = {n: lambda i, c=c, q=requests: c(q[i]) for n, c in calls.items()}
        times = timing.interleave(runs, range(len(requests)), rounds=rounds)
        for name, t in times.items():
            print(
                f"{rows:5} rows  {name:18} {t.median * 1e6:8.0f} us  "
                f"[{t.lower * 1e6:.0f}, {t.upper * 1e6:.0f}]"
            )


def print_accuracy(model: tf.keras.Model) -> None:
    """Prints the size and the error of every table format."""
    flat = make_request(2000, 99)
    expected = model(ragged_features(flat)).numpy()
    for form in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            export.to_scorer(model, folder, tables=form)
            size = sum(f.stat().st_size for f in Path(folder).iterdir())
            error = np.abs(Scorer.load(folder).predict(flat) - expected)
        print(
            f"{form:9} {size / 1e6:7.1f} MB   |error| of the probability: "
            f"mean {error.mean():.2e}, largest {error.max():.2e}"
        )


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    print(machine.describe("python -m benchmarks.serving"))
    model = train_model()
    time_requests(model, arguments.rows, arguments.rounds)
    print_accuracy(model)


if __name__ == "__main__":
    main()
