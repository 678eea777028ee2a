"""Public operations of the package, two of which run at the same time in two threads.

A program: `python tests/concurrent_calls.py FD`, for `tests.child_process.ChildProcess`. A request
is a pair of names and a number of rounds. The answer lists what differs from the results and from
the process-wide state that each operation alone has.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROWS, FIELDS = 600, 4
OPERATIONS: dict[str, Callable[[Path], Any]] = {}


def operation(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Registers an operation, which gets a new folder and returns arrays or other values."""
    OPERATIONS[function.__name__] = function
    return function


def examples(seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """ids and values [ROWS, FIELDS], labels and keys [ROWS]."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 50, [ROWS, FIELDS])
    values = rng.normal(size=[ROWS, FIELDS]).astype(np.float32)
    labels = (values[:, 0] + ids[:, 1] / 50 > 0.5).astype(np.float32)
    return ids, values, labels, rng.integers(0, 1 << 60, ROWS)


def batches(*columns: Any) -> list[tuple[Any, ...]]:
    """Batches of a hundred rows."""
    return [tuple(c[i : i + 100] for c in columns) for i in range(0, ROWS, 100)]


@operation
def discretizers(folder: Path) -> Any:
    """Adapts the discretizers, with a checkpoint, and applies them."""
    import tensorflow as tf

    from twml_ops.layers import HashingDiscretizer, MDLDiscretizer, PercentileDiscretizer

    ids, values, labels, _ = examples()
    found = []
    for number, layer in enumerate((PercentileDiscretizer(8), HashingDiscretizer(10, 8))):
        layer.adapt((ids, values), checkpoint_dir=folder / str(number), checkpoint_seconds=0)
        found += [*layer.state_variables, *layer((ids, values))]
    supervised = MDLDiscretizer()
    data = tf.data.Dataset.from_tensor_slices(((ids, values), labels)).batch(100)
    supervised.adapt(data)
    found += [*supervised.state_variables, *supervised((ids, values))]
    return found


@operation
def statistics(folder: Path) -> Any:
    """Adapts the layers of categories and of calibration."""
    from twml_ops.layers import (
        CountStatistics,
        IsotonicCalibration,
        PlattScaling,
        TargetStatistics,
    )

    ids, values, labels, keys = examples()
    found = []
    for layer in (TargetStatistics(FIELDS), CountStatistics(FIELDS)):
        layer.adapt([((i, k), y) for i, k, y in batches(ids, keys, labels)])
        found.append(layer((ids, keys)))
    for layer in (IsotonicCalibration(), PlattScaling()):
        layer.adapt(values[:, :1], labels)
        found.append(layer(values[:, :1]))
    return found


@operation
def trees(folder: Path) -> Any:
    """Trains boosted trees."""
    from twml_ops.layers import BoostedTrees

    _, values, labels, keys = examples()
    options = {"num_folds": 3, "max_trees": 6, "num_leaves": 6, "min_examples": 20, "seed": 4}
    layer = BoostedTrees(FIELDS, 0, **options)
    layer.adapt([([x, k], y[:, None]) for x, k, y in batches(values, keys, labels)])
    return layer([values, keys], training=True)


@operation
def training(folder: Path) -> Any:
    """Trains a model of Keras, saves and loads it, and exports a scorer."""
    import tensorflow as tf

    from twml_ops import core, export, layers, optimizers

    ids, values, labels, _ = examples()
    inputs = [tf.keras.Input([FIELDS], dtype=d) for d in ("int64", "float32")]
    init = tf.keras.initializers.RandomNormal(stddev=0.1, seed=5)
    outputs = layers.SparseLinear(1, 50, kernel_initializer=init)(tuple(inputs))
    model = tf.keras.Model(inputs, outputs)
    model.compile(optimizers.LazyAdam(0.05), "mse", jit_compile=False)
    model.fit((ids, values), labels, batch_size=100, epochs=2, shuffle=False, verbose=0)
    layers.save_model(model, folder / "m.keras")
    loaded = tf.keras.models.load_model(folder / "m.keras")
    export.to_scorer(loaded, folder / "scorer")
    scores = core.Scorer.load(folder / "scorer").predict(
        ids.ravel(), values.ravel(), np.arange(ROWS + 1) * FIELDS
    )
    return [*loaded.get_weights(), scores]


@operation
def classifier(folder: Path) -> Any:
    """Trains a classifier on a data frame, and draws a plot."""
    import pyarrow as pa

    from twml_ops import Classifier

    ids, values, labels, _ = examples()
    frame = pa.table({f"x{i}": values[:, i] for i in range(FIELDS)} | {"c": ids[:, 1]})
    made = Classifier("fm", epochs=1, batch_size=100, seed=3)
    made.fit(frame, labels, categorical=["c"])
    return [made.predict_proba(frame), *made._fitted.model.get_weights()]


@operation
def plots(folder: Path) -> Any:
    """Draws a plot in the style of the report."""
    from twml_ops.report.plots import svg

    return svg(lambda axes: axes.plot([1, 2], [3, 4]))


@operation
def readers(folder: Path) -> Any:
    """Writes and reads CSV and Parquet files, whose columns are guessed."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    from twml_ops.data import open_source

    ids, values, labels, _ = examples()
    cities = [f"c{i}" for i in ids[:, 0]]
    table = pa.table({"label": labels, "city": cities, "x": values[:, 0]})
    csv.write_csv(table, folder / "a.csv")
    parquet.write_table(table, folder / "a.parquet")
    found = []
    for name in ("a.csv", "a.parquet"):
        source = open_source(str(folder / name))
        found += [str(source.schema).replace(str(folder), "")]
        for block in source.blocks():
            arrays = {k: v for k, v in vars(block).items() if isinstance(v, np.ndarray)}
            found += [item for pair in sorted(arrays.items()) for item in pair]
    return found


@operation
def checkpoints(folder: Path) -> Any:
    """Saves, finds and reads checkpoints, in the background."""
    from twml_ops.checkpoint import CheckpointManager

    class Value:
        name, label = "table", "label"

        def __init__(self, value: Any) -> None:
            self.value = value

        def view(self) -> Any:
            return self.value

    with CheckpointManager(folder, background=True) as manager:
        for step in range(4):
            manager.save(step, [Value(np.arange(1000.0) * step)], {"position": step})
        manager.wait()
        newest = manager.latest()
        newest.verify()
        return [newest.read("table"), newest.manifest.step]


@operation
def kernels(folder: Path) -> Any:
    """Calls kernels on NumPy arrays and sketches."""
    from twml_ops import core

    ids, values, _, keys = examples()
    sketch = core.QuantileSketch(epsilon=0.01)
    for i, v in batches(ids, values):
        sketch.update(i.ravel(), v.ravel())
    return [core.hash_ids(keys, 20, 1), *sketch.state(0, 50).values()]


@operation
def lookups(folder: Path) -> Any:
    """Gives ids rows in a graph, with evictions."""
    import tensorflow as tf

    from twml_ops.layers import DynamicLookup

    ids, *_ = examples()
    layer = DynamicLookup(40)
    call = tf.function(lambda i: layer(i, training=True), autograph=False)
    return [call(tf.constant(i)) for (i,) in batches(ids * 977)]


@operation
def files(folder: Path) -> Any:
    """Publishes files and folders."""
    from twml_ops import _publish

    for i in range(5):
        with _publish.new_file(folder / "a", overwrite=i > 0) as part:
            part.write_text(str(i))
        _publish.write_file(folder / "b", str(i).encode())
    with _publish.new_folder(folder / "c") as part:
        (part / "d").write_text("e")
    return [(folder / "a").read_text(), (folder / "b").read_text(), (folder / "a").stat().st_mode]


def digest(value: Any) -> str:
    """A text that differs if anything differs."""
    if isinstance(value, (list, tuple)):
        return hashlib.sha256("".join(map(digest, value)).encode()).hexdigest()
    if isinstance(value, (str, int, float)) or value is None:
        return repr(value)
    array = np.ascontiguousarray(value)
    return hashlib.sha256(array.tobytes()).hexdigest() + repr((array.shape, array.dtype))


def process_state() -> dict[str, Any]:
    """What all threads of a process share and an operation must leave as it was."""
    mask = os.umask(0o22)
    os.umask(mask)
    found: dict[str, Any] = {
        "warning filters": list(warnings.filters),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "mask of modes": mask,
        "errors of NumPy": np.geterr(),
        "generator of Python": hash(random.getstate()),
        "generator of NumPy": digest(list(np.random.get_state()[:3])),  # noqa: NPY002
        "collector": gc.isenabled(),
        "streams": (id(sys.stdout), id(sys.stderr)),
        "import hooks": list(map(id, sys.meta_path)),
        "signals": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
    }
    if "matplotlib" in sys.modules:
        found["style of plots"] = dict(sys.modules["matplotlib"].rcParams)
    return found


def alone(name: str) -> str:
    """The digest of what an operation returns, in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        return digest(OPERATIONS[name](Path(folder)))


@functools.cache
def expected(name: str) -> str:
    """The digest that an operation has while nothing else runs."""
    return alone(name)


def together(first: str, second: str, rounds: int) -> list[str]:
    """What differs if two operations run at the same time in two threads."""
    names = (first, second)
    for name in names:
        expected(name)
    before = process_state()
    faults: list[str] = []
    barrier = threading.Barrier(2)

    def run(name: str) -> None:
        for _ in range(rounds):
            barrier.wait()
            try:
                if alone(name) != expected(name):
                    faults.append(f"{name}: another result")
            except BaseException as e:
                faults.append(f"{name}: {type(e).__name__}: {e}")

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = process_state()
    faults += [f"{k} changed: {before[k]} -> {after[k]}" for k in before if before[k] != after[k]]
    return faults


if __name__ == "__main__":
    from tests.child_process import serve_requests

    sys.setswitchinterval(1e-5)
    serve_requests(lambda request: together(*request))
