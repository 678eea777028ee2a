"""Microseconds a request: the scorer without TensorFlow beside TensorFlow's `serving_default`.

    python -m benchmarks.serving [--rows 1 20 200] [--rounds 100]

One process, contenders interleaved. The model is `sparse_mlp` on random features: 13 continuous, 26
categorical and, of 2^18, 150 sparse ones a row. A request is the flat arrays of its rows; the
answer their probabilities. `stock` and `fast` are SavedModels with and without stock ops only;
their signature is called as a server would, with tensors made of the arrays. Last comes what int8
and bfloat16 tables cost in accuracy.
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


def request(rows: int, seed: int) -> dict[str, np.ndarray]:
    """The flat arrays of a batch: every row has all columns, and its share of sparse features."""
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


def features(flat: dict[str, np.ndarray]) -> dict[str, tf.RaggedTensor]:
    """What the Keras model is called with."""
    return {
        name: tf.RaggedTensor.from_row_splits(
            flat[name], flat[f"{name.rsplit('_', 1)[0]}_row_splits"]
        )
        for name in flat
        if not name.endswith("row_splits")
    }


def trained(rows: int = 2000) -> tf.keras.Model:
    """The model after an epoch on random labels that depend on the features."""
    flat = request(rows, 0)
    first = flat["continuous_values"].reshape(rows, -1)[:, 0]
    seen = flat["sparse_ids"].reshape(rows, -1)
    labels = (first + (seen == 7).any(1) > 0.5).astype(np.float32)[:, None]
    data = tf.data.Dataset.from_tensor_slices((features(flat), labels)).batch(200)
    tf.keras.utils.set_random_seed(0)
    model = sparse_mlp(SCHEMA, data)
    model.compile(Adagrad(0.05), "binary_crossentropy", jit_compile=False)
    model.fit(data, epochs=2, verbose=0)
    return model


def contenders(model: tf.keras.Model, folder: Path) -> dict[str, Any]:
    """Name → function of a request's arrays."""
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
    """Prints a line for each contender and size of request."""
    with tempfile.TemporaryDirectory() as folder:
        calls = contenders(model, Path(folder))
    for rows in row_counts:
        requests = [request(rows, seed) for seed in range(1, 9)]
        want = model(features(requests[0])).numpy()
        for name, call in calls.items():
            worst = np.abs(call(requests[0]) - want).max()
            assert worst < 1e-6, (name, worst)
        runs = {n: lambda i, c=c, q=requests: c(q[i]) for n, c in calls.items()}
        times = timing.interleave(runs, range(len(requests)), rounds=rounds)
        for name, t in times.items():
            print(
                f"{rows:5} rows  {name:18} {t.median * 1e6:8.0f} us  "
                f"[{t.lower * 1e6:.0f}, {t.upper * 1e6:.0f}]"
            )


def accuracy(model: tf.keras.Model) -> None:
    """Prints the size and the error of every table format."""
    flat = request(2000, 99)
    want = model(features(flat)).numpy()
    for form in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            export.to_scorer(model, folder, tables=form)
            size = sum(f.stat().st_size for f in Path(folder).iterdir())
            error = np.abs(Scorer.load(folder).predict(flat) - want)
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
    model = trained()
    time_requests(model, arguments.rows, arguments.rounds)
    accuracy(model)


if __name__ == "__main__":
    main()
