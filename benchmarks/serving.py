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
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import machine, served, tables
from benchmarks.serving_c_program import CProgram, Percentiles, median
from benchmarks.serving_page import sections
from benchmarks.serving_peers import LightGBM, onnx_call, tree_features
from benchmarks.serving_requests import make_request, ragged_features, train_model
from tests.core.numpy_scorer import Scorer as NumPyScorer
from twml_ops import export
from twml_ops.core import Scorer

TREES, ONNX = "LightGBM, C API", "ONNX Runtime, dense part"


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
        seconds: the seconds of a run of one contender.
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
        options: the options of the command.
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
    tables.record(found, options.json, options.page, made, "benchmarks/serving.py")


if __name__ == "__main__":
    main()
