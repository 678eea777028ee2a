"""Latency of a request: the native scorer, the scorer in NumPy, TensorFlow, and other libraries.

    python -m benchmarks.serving [--rows 1 20 200] [--rounds 100] [--runs 11] [--calls 20000]

The model is `sparse_mlp` on random features: 13 continuous, 26 categorical and 150 of 2^18 sparse
features per row. A request consists of the flat arrays of its rows, and the answer of their
probabilities.

`C` is the native scorer through its C interface: `scorer_latency.c` is compiled and started
`--runs` times, and the table has the medians over the runs of their percentiles. Several callers
are threads that make requests of one row at the same time. All other contenders run in one
process, interleaved: `Python` is `core.Scorer`, `NumPy` the reference of the tests, which was the
scorer before, `fast` and `stock` are SavedModels with and without the ops of this package, called
as a server would do it. `LightGBM` is its C API for one row, on a model that has at most the log
loss of ours on other examples; the trees do not see the raw sparse features that the labels do not
depend on. `ONNX Runtime` computes the dense part only, from the output of the sparse layers; it is
left out if it is not installed. `REST` and `gRPC` are `twml-ops serve` in a process of its own on
this machine: the time from an encoded request to the bytes of the answer. The server and its client
share the cores, so the script also prints the CPU time of the server for a request. At the end it
prints the errors of int8 and bfloat16 tables.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import twml_ops
from benchmarks import machine, served, timing
from tests.core.numpy_scorer import Scorer as NumPyScorer
from twml_ops import export
from twml_ops.core import Scorer
from twml_ops.data import Schema
from twml_ops.models import sparse_mlp
from twml_ops.optimizers import Adagrad

SCHEMA = Schema(tuple(f"n{i}" for i in range(13)), tuple(f"c{i}" for i in range(26)), 1 << 18, "x")
SPARSE_PER_ROW = 150
PACKAGE = Path(twml_ops.__file__).parent
PROGRAM = Path(__file__).with_name("scorer_latency.c")
DISTINCT_REQUESTS = {1: 1024, 20: 64, 200: 8}  # a request has been received: it is in a cache
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


class Percentiles(NamedTuple):
    """Of one run of the C program.

    Attributes:
        p50: microseconds.
        p99: microseconds.
        rate: requests per second of all callers.
    """

    p50: float
    p99: float
    rate: float


class CProgram:
    """The program that makes requests through the C interface.

    Args:
        folder: where it is compiled, and its requests are written.
        model: the folder of the exported model.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, model
        self._program = folder / "scorer_latency"
        command = ["gcc", "-O2", "-std=c11", f"-I{PACKAGE / 'include'}", str(PROGRAM)]
        command += ["-o", str(self._program), f"-L{PACKAGE}", "-ltwml_ops_scorer", "-pthread"]
        subprocess.run([*command, f"-Wl,-rpath,{PACKAGE}"], check=True)

    def write_requests(self, rows: int) -> None:
        """Writes the requests of a size; scorer_latency.c describes the file."""
        names = list(json.loads((self._model / "scorer.json").read_text())["inputs"])
        count = DISTINCT_REQUESTS.get(rows, 64)
        with (self._folder / f"requests{rows}").open("wb") as file:
            file.write(np.int64(count).tobytes())
            for seed in range(1, count + 1):
                request = make_request(rows, seed)
                file.write(np.int64(rows).tobytes())
                for name in names:
                    data = request[name].tobytes()
                    file.write(np.array([request[name].size, len(data)]).tobytes())
                    file.write(data + bytes(-len(data) % 8))

    def run(self, rows: int, callers: int, threads: int, calls: int) -> Percentiles:
        """Makes requests.

        Args:
            rows: rows of a request.
            callers: number of threads that make requests.
            threads: number of threads that share the rows of a request.
            calls: number of requests of each caller.
        """
        arguments = [self._model, self._folder / f"requests{rows}", callers, threads, calls]
        command = [str(self._program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return Percentiles(*map(float, done.stdout.split()))


def time_c(model: Path, folder: Path, row_counts: list[int], runs: int, calls: int) -> None:
    """Prints the medians over interleaved runs of the C program."""
    program = CProgram(folder, model)
    settings = []
    for rows in row_counts:
        program.write_requests(rows)
        settings += [(rows, 1, 1)] + ([(rows, 1, 2)] if rows > 20 else [])
    settings += [(1, callers, 1) for callers in (2, 8)] if 1 in row_counts else []
    found: dict[tuple[int, int, int], list[Percentiles]] = {s: [] for s in settings}
    for _ in range(runs):
        for rows, callers, threads in settings:
            n = max(50, calls // (rows * callers))
            found[rows, callers, threads].append(program.run(rows, callers, threads, n))
    for (rows, callers, threads), results in found.items():
        p50, p99, rate = np.median(np.array(results), axis=0)
        print(
            f"{rows:5} rows  C, {callers} callers, {threads} threads   p50 {p50:8.1f} us  "
            f"p99 {p99:8.1f} us  {rate:9.0f} requests/s"
        )


def contenders(model: tf.keras.Model, folder: Path) -> dict[str, Any]:
    """Exports the model; returns name -> function from the arrays of a request to the answer."""
    export.to_scorer(model, folder / "scorer")
    export.to_tf(model, folder / "fast")
    export.to_stock_tf(model, folder / "stock")
    calls: dict[str, Any] = {
        "Python": Scorer.load(folder / "scorer").predict,
        "NumPy": NumPyScorer.load(folder / "scorer").predict,
    }
    for name in ("fast", "stock"):
        serve = tf.saved_model.load(str(folder / name)).signatures["serving_default"]

        def call(flat: dict[str, np.ndarray], serve: Any = serve) -> np.ndarray:
            return serve(**{k: tf.constant(v) for k, v in flat.items()})["probability"].numpy()

        calls[f"TensorFlow, {name}"] = call
    return calls


def tree_features(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What LightGBM gets of the requests, and their labels: the numbers, categories, and one id."""
    flat = make_request(rows, seed)
    numbers = flat["continuous_values"].reshape(rows, -1)
    has_seven = (flat["sparse_ids"].reshape(rows, -1) == 7).any(1)
    categories = flat["categorical_ids"].reshape(rows, -1) % 1000
    labels = (numbers[:, 0] + has_seven > 0.5).astype(np.float64)
    return np.column_stack([numbers, categories, has_seven]).astype(np.float64), labels


def lightgbm_call(model: tf.keras.Model) -> tuple[str, Callable[[np.ndarray], float]]:
    """Trains trees until they are as good as the model; returns the C API's call for one row."""
    import lightgbm
    from lightgbm.basic import _LIB

    def log_loss(p: np.ndarray, y: np.ndarray) -> float:
        p = np.clip(p, 1e-7, 1 - 1e-7)
        return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))

    x, y = tree_features(2000, 0)
    probe, labels = tree_features(2000, 99)
    ours = log_loss(model(ragged_features(make_request(2000, 99))).numpy()[:, 0], labels)
    trees, booster = 0, None
    for trees in (25, 50, 100, 200, 400):
        parameters = {"objective": "binary", "num_leaves": 31, "verbose": -1, "seed": 1}
        booster = lightgbm.train(parameters, lightgbm.Dataset(x, y), trees)
        if log_loss(np.asarray(booster.predict(probe)), labels) <= ours:
            break
    assert booster is not None
    theirs = log_loss(np.asarray(booster.predict(probe)), labels)
    config = ctypes.c_void_p()
    code = _LIB.LGBM_BoosterPredictForMatSingleRowFastInit(
        booster._handle, 0, 0, -1, 1, x.shape[1], b"num_threads=1", ctypes.byref(config)
    )
    assert code == 0, code
    out, size = ctypes.c_double(), ctypes.c_int64()
    function, references = (
        _LIB.LGBM_BoosterPredictForMatSingleRowFast,
        (ctypes.byref(size), ctypes.byref(out)),
    )

    def call(row: np.ndarray, keep: Any = booster) -> float:
        function(config, ctypes.c_void_p(row.ctypes.data), *references)
        return out.value

    return f"LightGBM, {trees} trees (log loss {theirs:.4f}, ours {ours:.4f})", call


def onnx_call(folder: Path) -> Callable[[np.ndarray], np.ndarray] | None:
    """The dense layers of the model in ONNX Runtime on one thread, or None without it."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
        return None
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    steps = json.loads((folder / "scorer.json").read_text())["steps"]
    nodes, weights, name = [], [], "x"
    for step in (s for s in steps if s["op"] == "dense"):
        arrays = {key: np.load(folder / file) for key, file in step["arrays"].items()}
        inputs = [name]
        for key in ("kernel", "bias"):
            if key in arrays:
                weights.append(numpy_helper.from_array(arrays[key], f"{step['out'][0]}{key}"))
                inputs.append(weights[-1].name)
        nodes.append(helper.make_node("Gemm", inputs, [step["out"][0]]))
        name = step["out"][0]
        if arrays["kernel"].shape[1] > 1:
            nodes.append(helper.make_node("Relu", [name], [f"{name}r"]))
            name = f"{name}r"
    nodes.append(helper.make_node("Sigmoid", [name], ["y"]))
    width = next(w.dims[0] for w in weights if len(w.dims) == 2)
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, w])]
        for n, w in (("x", width), ("y", 1))
    ]
    graph = helper.make_graph(nodes, "dense", *ends, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(["y"], {"x": x})[0]


def time_server(
    server: served.Served, model: tf.keras.Model, row_counts: list[int], calls: int
) -> None:
    """Prints the times of requests to a server, for one caller and for several."""
    for rows in row_counts:
        requests = [make_request(rows, seed) for seed in range(1, 9)]
        expected = model(ragged_features(requests[0])).numpy()
        for api in ("REST", "gRPC"):
            encoded = [served.encode(api, r) for r in requests]
            answer = served.decode(api, server.caller(api)(encoded[0]))
            assert np.abs(answer - expected).max() < 1e-6, api
            for callers in (1, 8):
                n = max(30, calls // (10 * callers * max(1, rows // 10)))
                load = server.load(api, encoded, callers, n)
                print(
                    f"{rows:5} rows  {api}, {callers} callers, {len(encoded[0])} bytes   "
                    f"p50 {load.p50:8.0f} us  p99 {load.p99:8.0f} us  {load.rate:7.0f} requests/s  "
                    f"server {load.cpu:6.0f} us of CPU"
                )


def time_requests(
    model: tf.keras.Model, row_counts: list[int], rounds: int, runs: int, calls_of_c: int
) -> None:
    """Prints one line per contender and size of request."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        calls = contenders(model, folder)
        time_c(folder / "scorer", folder, row_counts, runs, calls_of_c)
        with served.serve(folder / "scorer") as server:
            time_server(server, model, row_counts, calls_of_c)
        onnx = onnx_call(folder / "scorer")
        tree_name, tree_call = lightgbm_call(model)
        for rows in row_counts:
            requests = [make_request(rows, seed) for seed in range(1, 9)]
            expected = model(ragged_features(requests[0])).numpy()
            for name, call in calls.items():
                worst = np.abs(call(requests[0]) - expected).max()
                assert worst < 1e-6, (name, worst)
            timed = {n: lambda i, c=c, q=requests: c(q[i]) for n, c in calls.items()}
            if rows == 1:
                features = [tree_features(1, seed)[0] for seed in range(1, 9)]
                timed[tree_name] = lambda i, q=features: tree_call(q[i])
            if onnx is not None:
                hidden = [np.float32(np.random.default_rng(i).random((rows, 32))) for i in range(8)]
                timed["ONNX Runtime, dense part"] = lambda i, q=hidden: onnx(q[i])
            times = timing.interleave(timed, range(len(requests)), rounds=rounds)
            for name, t in times.items():
                print(
                    f"{rows:5} rows  {name:26} {t.median * 1e6:8.0f} us  "
                    f"[{t.lower * 1e6:.0f}, {t.upper * 1e6:.0f}]"
                )
        if onnx is None:
            print("ONNX Runtime is not installed: pip install onnx onnxruntime")


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
    parser.add_argument("--rounds", type=int, default=100, help="of the contenders in Python")
    parser.add_argument("--runs", type=int, default=11, help="of the C program")
    parser.add_argument("--calls", type=int, default=20000, help="of the C program, in rows")
    arguments = parser.parse_args()
    print(machine.describe("python -m benchmarks.serving"))
    model = train_model()
    time_requests(model, arguments.rows, arguments.rounds, arguments.runs, arguments.calls)
    print_accuracy(model)


if __name__ == "__main__":
    main()
