"""Latency of a request: the native scorer, the scorer in NumPy, TensorFlow, and other libraries.

    python -m benchmarks.serving [--rows 1 20 200] [--runs 11] [--seconds 0.25] [--json FILE]

The model is `sparse_mlp` on random features: 13 continuous, 26 categorical and 150 of 2^18 sparse
features per row. A request consists of the flat arrays of its rows, and the answer of their
probabilities.

`C` is the native scorer through its C interface: `scorer_latency.c` is compiled and started
`--runs` times. Several callers are threads that make requests of one row at the same time. All
other contenders are called from one Python process. The runs of all are interleaved, and the table
has the medians over the runs of their percentiles. `core.Scorer` is the Python interface, `NumPy`
the reference of the tests, which was the scorer before, `fast` and `stock` are SavedModels with and
without the ops of this package, called as a server would do it. `LightGBM` is its C API, with the
function for single rows where there is one, on the smallest of some numbers of trees that has at
most the log loss of our model on other examples. Both are trained on the same examples; the trees
get of the raw sparse features only those that the labels depend on. `ONNX Runtime` computes the
dense part only, from the output of the sparse layers; it is
left out if it is not installed. `REST` and `gRPC` are `twml-ops serve` in a process of its own on
this machine: the time from an encoded request to the bytes of the answer. The server and its client
share the cores, so the table has the CPU time of the server for a request.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import twml_ops
from benchmarks import machine, served, tables
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
SIGNALS = (30, 50, 70, 90)  # sparse features that the labels depend on
TEST_ROWS = 5000
TREES, ONNX = "LightGBM, C API", "ONNX Runtime, dense part"


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


class Percentiles(NamedTuple):
    """Of one run.

    Attributes:
        p50: microseconds.
        p99: microseconds.
        rate: requests per second of all callers.
        cpu: CPU time of a request in microseconds.
    """

    p50: float
    p99: float
    rate: float
    cpu: float


def median(runs: Sequence[Percentiles]) -> dict[str, float]:
    """The medians over runs."""
    return Percentiles(*np.median(np.array(runs), axis=0).tolist())._asdict()


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

    def run(self, rows: int, callers: int, threads: int, seconds: float) -> Percentiles:
        """Makes requests.

        Args:
            rows: rows of a request.
            callers: number of threads that make requests.
            threads: number of threads that share the rows of a request.
            seconds: for which they do.
        """
        arguments = [self._model, self._folder / f"requests{rows}", callers, threads, seconds]
        command = [str(self._program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return Percentiles(*map(float, done.stdout.split()))


def time_c(
    model: Path, folder: Path, row_counts: list[int], runs: int, seconds: float
) -> list[dict[str, Any]]:
    """The medians over interleaved runs of the C program, by rows, callers and threads."""
    program = CProgram(folder, model)
    settings = []
    for rows in row_counts:
        program.write_requests(rows)
        settings += [(rows, 1, 1)] + ([(rows, 1, 2)] if rows > 20 else [])
    settings += [(1, callers, 1) for callers in (2, 8)] if 1 in row_counts else []
    found: dict[tuple[int, int, int], list[Percentiles]] = {s: [] for s in settings}
    for _ in range(runs):
        for setting in settings:
            found[setting].append(program.run(*setting, seconds))
    names = ("rows", "callers", "threads")
    return [{**dict(zip(names, s, strict=True)), **median(r)} for s, r in found.items()]


def contenders(model: tf.keras.Model, folder: Path) -> dict[str, Any]:
    """Exports the model; returns name -> function from the arrays of a request to the answer."""
    export.to_scorer(model, folder / "scorer")
    export.to_tf(model, folder / "fast")
    export.to_stock_tf(model, folder / "stock")
    calls: dict[str, Any] = {
        "core.Scorer": Scorer.load(folder / "scorer").predict,
        "NumPy": NumPyScorer.load(folder / "scorer").predict,
    }
    for name in ("fast", "stock"):
        serve = tf.saved_model.load(str(folder / name)).signatures["serving_default"]

        def call(flat: dict[str, np.ndarray], serve: Any = serve) -> np.ndarray:
            return serve(**{k: tf.constant(v) for k, v in flat.items()})["probability"].numpy()

        calls[f"TensorFlow, {name}"] = call
    return calls


def tree_features(flat: dict[str, np.ndarray]) -> np.ndarray:
    """What LightGBM gets of a request, float64 [B, 43]: numbers, categories, and `SIGNALS`."""
    rows = len(flat["sparse_row_splits"]) - 1
    numbers = flat["continuous_values"].reshape(rows, -1)
    categories = flat["categorical_ids"].reshape(rows, -1) % 1000
    return np.column_stack([numbers, categories, signals_of(flat)]).astype(np.float64)


class LightGBM:
    """Trees that are as good as the model, called by LightGBM's C API on one thread.

    Args:
        model: the model, trained on the same examples.
        rows: their number.

    Attributes:
        quality: number of trees, and log loss and AUC of both on other examples.
    """

    def __init__(self, model: tf.keras.Model, rows: int) -> None:
        import lightgbm
        from lightgbm.basic import _LIB

        flat, others = make_request(rows, 0), make_request(TEST_ROWS, 99)
        x, y = tree_features(flat), labels_of(flat, 0)
        probe, labels = tree_features(others), labels_of(others, 99)
        ours = model.predict(ragged_features(others), verbose=0)[:, 0]
        parameters = {"objective": "binary", "num_leaves": 31, "verbose": -1, "seed": 1}
        for trees in (5, 10, 20, 30, 40, 50, 70, 100, 150, 200, 400):
            self._booster = lightgbm.train(parameters, lightgbm.Dataset(x, y), trees)
            theirs = np.asarray(self._booster.predict(probe))
            if log_loss(theirs, labels) <= log_loss(ours, labels):
                break
        self.quality = {
            "trees": trees,
            "log loss": log_loss(theirs, labels),
            "AUC": auc(theirs, labels),
            "our log loss": log_loss(ours, labels),
            "our AUC": auc(ours, labels),
        }
        self._library, self._columns = _LIB, x.shape[1]
        self._config = ctypes.c_void_p()
        options = (0, 0, -1, 1, self._columns, b"num_threads=1")  # normal, all trees, float64
        code = _LIB.LGBM_BoosterPredictForMatSingleRowFastInit(
            self._booster._handle, *options, ctypes.byref(self._config)
        )
        assert code == 0, code
        self._size = ctypes.c_int64()

    def call(self, x: np.ndarray) -> np.ndarray:
        """The probabilities of rows, float64 [B]."""
        out = np.empty(len(x))
        result = ctypes.byref(self._size), ctypes.c_void_p(out.ctypes.data)
        data = ctypes.c_void_p(x.ctypes.data)
        if len(x) == 1:
            function = self._library.LGBM_BoosterPredictForMatSingleRowFast
            code = function(self._config, data, *result)
        else:
            function = self._library.LGBM_BoosterPredictForMat
            shape = (1, len(x), self._columns, 1)  # float64, by row
            options = (0, 0, -1, b"num_threads=1")
            code = function(self._booster._handle, data, *shape, *options, *result)
        assert code == 0, code
        return out


def log_loss(p: np.ndarray, y: np.ndarray) -> float:
    """The mean log loss."""
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def auc(p: np.ndarray, y: np.ndarray) -> float:
    """The area under the ROC curve."""
    metric = tf.keras.metrics.AUC(num_thresholds=2000)
    metric.update_state(y, np.clip(p, 0, 1))
    return float(metric.result())


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
) -> list[dict[str, Any]]:
    """The times of requests to a server, for one caller and for several."""
    found = []
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
                setting = {"rows": rows, "api": api, "callers": callers, "bytes": len(encoded[0])}
                found.append({**setting, **load._asdict()})
    return found


def time_python(
    calls: dict[str, Callable[[int], object]], runs: int, seconds: float
) -> dict[str, dict[str, float]]:
    """The medians over runs of the percentiles of calls from Python. Runs are interleaved.

    Args:
        calls: name -> function of the number of a request.
        runs: number of runs.
        seconds: of a run of one contender.
    """
    found: dict[str, list[Percentiles]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            times, cpu, begin = [], time.process_time(), time.perf_counter()
            before = begin
            while before - begin < seconds:
                call(len(times) % 8)
                now = time.perf_counter()
                times.append(now - before)
                before = now
            used = (time.process_time() - cpu) / len(times) * 1e6
            p50, p99 = (np.percentile(times, q) * 1e6 for q in (50, 99))
            found[name].append(Percentiles(p50, p99, len(times) / (before - begin), used))
    return {name: median(results) for name, results in found.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All measurements.

    Args:
        options: of the command.
    """
    model = train_model(options.examples, options.epochs)
    found: dict[str, Any] = {"runs": options.runs}
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:
        folder = Path(temporary)
        calls = contenders(model, folder)
        c = time_c(folder / "scorer", folder, options.rows, options.runs, options.seconds)
        found["c"] = c
        with served.serve(folder / "scorer") as server:
            found["server"] = time_server(server, model, options.rows, options.calls)
        trees, onnx = LightGBM(model, options.examples), onnx_call(folder / "scorer")
        found["LightGBM"] = trees.quality
        found["python"] = []
        for rows in options.rows:
            requests = [make_request(rows, seed) for seed in range(1, 9)]
            expected = model(ragged_features(requests[0])).numpy()
            for name, call in calls.items():
                worst = np.abs(call(requests[0]) - expected).max()
                assert worst < 1e-6, (name, worst)
            timed = {n: lambda i, c=c, q=requests: c(q[i]) for n, c in calls.items()}
            features = [tree_features(request) for request in requests]
            timed[TREES] = lambda i, q=features: trees.call(q[i])
            if onnx is not None:
                hidden = [np.float32(np.random.default_rng(i).random((rows, 32))) for i in range(8)]
                timed[ONNX] = lambda i, q=hidden: onnx(q[i])
            times = time_python(timed, options.runs, options.seconds)
            found["python"].append({"rows": rows, "calls": times})
    if onnx is None:
        print("ONNX Runtime is not installed: pip install onnx onnxruntime")
    return found


def sections(found: dict[str, Any]) -> dict[str, str]:
    """The sections of docs/serving.md, by name.

    Args:
        found: what `main` has measured.
    """
    return {
        "latency": latency(found),
        "server": server_table(found),
    }


def latency(found: dict[str, Any]) -> str:
    """The table of the scorer and its peers, and the throughput of several callers."""
    names = list(dict.fromkeys(n for each in found["python"] for n in each["calls"]))
    single = {(c["rows"], c["callers"], c["threads"]): c for c in found["c"]}
    rows = []
    for title, cell in [("C", lambda rows: single[rows, 1, 1])] + [
        (
            name,
            lambda rows, n=name: next(
                (e["calls"].get(n) for e in found["python"] if e["rows"] == rows), None
            ),
        )
        for name in names
    ]:
        cells = [cell(each["rows"]) for each in found["python"]]
        rows.append([title, *(f"{c['p50']:,.1f} / {c['p99']:,.1f}" if c else "" for c in cells)])
    header = ["p50 / p99, µs", *(size_text(each["rows"]) for each in found["python"])]
    lines = [tables.markdown(header, rows), ""]
    for (size, callers, threads), c in single.items():
        if callers > 1 or threads > 1:
            who = f"{callers} callers" if callers > 1 else f"{threads} threads for a request"
            lines.append(
                f"- {size_text(size)}, {who}: p50 {c['p50']:,.1f} µs, p99 "
                f"{c['p99']:,.1f} µs, {c['rate']:,.0f} requests/s, {c['cpu']:.2f} µs of CPU each."
            )
    q = found["LightGBM"]
    lines += [
        "",
        f"LightGBM has {q['trees']} trees, with a log loss of {q['log loss']:.4f} and an AUC of "
        f"{q['AUC']:.4f} on other examples; our model has {q['our log loss']:.4f} and "
        f"{q['our AUC']:.4f}.",
        "",
        tables.machine(found["machine"]),
    ]
    return "\n".join(lines)


def size_text(rows: int) -> str:
    """The size of a request, as a text."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


def server_table(found: dict[str, Any]) -> str:
    """The table of the server."""
    pairs: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}
    for each in found["server"]:
        pairs.setdefault((each["rows"], each["api"]), {})[each["callers"]] = each
    header = [
        *("request", "bytes", "p50, one caller, µs", "p99, µs", "requests/s, 8 callers"),
        "CPU of the server for a request, µs",
    ]
    rows = [
        [
            *(f"{size_text(rows)}, {api}", f"{one['bytes']:,}"),
            *(f"{one['p50']:,.0f}", f"{one['p99']:,.0f}", f"{eight['rate']:,.0f}"),
            f"{one['cpu']:,.0f} to {eight['cpu']:,.0f}"
            if one["cpu"] < eight["cpu"]
            else f"{eight['cpu']:,.0f} to {one['cpu']:,.0f}",
        ]
        for (rows, api), by_callers in pairs.items()
        for one, eight in [(by_callers[1], by_callers[8])]
    ]
    return tables.markdown(header, rows) + "\n\n" + tables.machine(found["machine"])


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--runs", type=int, default=11, help="of which the medians are taken")
    parser.add_argument("--seconds", type=float, default=0.25, help="of a run of one contender")
    parser.add_argument("--calls", type=int, default=8000, help="of the server, in rows")
    parser.add_argument("--examples", type=int, default=20_000, help="to train on")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--dir", default=".", help="folder for temporary files")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--page", type=Path, help="guide that gets the tables")
    options = parser.parse_args()
    command = machine.command_line("benchmarks.serving")
    about = machine.describe(command, (*machine.PACKAGES, "lightgbm", "onnxruntime"))
    found = {"machine": about, **measure(options)}
    made = sections(found)
    print("\n\n".join(made.values()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.page:
        for name, text in made.items():
            tables.insert(options.page, name, text, "benchmarks/serving.py")


if __name__ == "__main__":
    main()
