"""Discretizers and quantile sketches: speed compared with peers and memory bandwidth, errors."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks import bandwidth_floor, timing

Log = Callable[[str], None]
TWML_OPS, SEARCHSORTED, DATASKETCHES = "twml_ops", "tf.searchsorted", "datasketches"
EPSILON = 1e-3
BOUNDARIES = {  # name -> (features, minimum and maximum number of boundaries of a feature)
    "1 feature, 100 boundaries": (1, 100, 100),
    "1,000 features, 20 each": (1_000, 20, 20),
    "10,000 features, 1 to 255 each": (10_000, 1, 255),
    "100,000 features, 1 to 63 each": (100_000, 1, 63),
}
ENTRY_BYTES = 8 + 4  # an int64 id and a float32 value, read and written
VALUE_BYTES = 4  # what peers read, a float32 value, and what tf.searchsorted writes, an int32


def measure(*, threads: int, rounds: int, quick: bool, log: Log) -> dict[str, Any]:
    """Measures times and errors.

    Args:
        threads: the threads of the discretizers; sketches use one thread.
        rounds: turns of each contender.
        quick: use tiny sizes.
        log: receives progress messages.

    Returns:
        JSON-compatible results.
    """
    entries = 2**12 if quick else 2**21
    probe = bandwidth_floor.BandwidthProbe(threads, megabytes=16 if quick else 256)
    discretize, bandwidth = _discretize(entries, rounds, quick, probe, log)
    return {
        "threads": threads,
        "rounds": rounds,
        "entries": entries,
        "epsilon": EPSILON,
        "bandwidth": asdict(bandwidth),
        "floor": entries * ENTRY_BYTES * (1 / bandwidth.read + 1 / bandwidth.update),
        "discretize": discretize,
        "sketch": _sketch(rounds, quick, log),
        "errors": _errors(20_000 if quick else 5_000_000, log),
    }


def _discretize(
    entries: int, rounds: int, quick: bool, probe: bandwidth_floor.BandwidthProbe, log: Log
) -> tuple[dict[str, Any], bandwidth_floor.Bandwidth]:
    import tensorflow as tf

    from twml_ops import ops

    rng = np.random.default_rng(0)
    runs: dict[tuple[str, str], Callable[[int], object]] = {
        ("memory", name): run for name, run in probe.runs().items()
    }
    values = tf.constant(rng.normal(size=entries).astype(np.float32))
    row_splits = tf.constant([0, entries], tf.int64)
    for case, (features, least, most) in BOUNDARIES.items():
        log(f"preparing {case}")
        features = min(features, 100) if quick else features
        counts = rng.integers(least, most + 1, features)
        splits = np.concatenate([[0], np.cumsum(counts)])
        boundaries = np.concatenate([np.sort(rng.normal(size=n)) for n in counts]).astype("f")
        state = [tf.Variable(np.arange(features)), tf.Variable(boundaries), tf.Variable(splits)]
        ids = tf.constant(rng.integers(0, features, entries))

        @tf.function
        def discretize(ids: tf.Tensor, state: Any = state) -> tf.Tensor:
            return ops.percentile_discretize(ids, values, row_splits, *state)[0]

        runs[case, TWML_OPS] = lambda _, call=discretize, ids=ids: call(ids)
        if features == 1:
            edges = tf.constant(boundaries)
            stock = tf.function(lambda v, edges=edges: tf.searchsorted(edges, v))
            if not np.array_equal(discretize(ids), stock(values)):
                raise AssertionError("buckets differ from the buckets of tf.searchsorted")
            runs[case, SEARCHSORTED] = lambda _, call=stock: call(values)
    log("timing buckets")
    times = timing.interleave(runs, range(4), rounds=rounds)
    read, update = (times.pop(("memory", name)).median for name in probe.runs())
    found: dict[str, Any] = {}
    for (case, name), t in times.items():
        found.setdefault(case, {})[name] = asdict(t)
    return found, probe.bandwidth(read, update)


def _sketch(rounds: int, quick: bool, log: Log) -> dict[str, Any]:
    from twml_ops.core import QuantileSketch

    n = 20_000 if quick else 2_000_000
    rng = np.random.default_rng(1)
    # Each call gets new values: repeated values would make the sketch's work easier.
    values = rng.normal(size=(2 * rounds + 2, n)).astype(np.float32)
    runs: dict[tuple[str, str], Callable[[int], object]] = {}
    found: dict[str, Any] = {}
    for features in (1, 100, 10_000):
        log(f"filling sketches of {features:,} features")
        ids = rng.integers(0, features, n)
        case, fill = f"{features:,} feature{'s' * (features > 1)}", 1 if quick else 20
        sketch, seconds = QuantileSketch(EPSILON), 0.0
        for _ in range(fill):
            first = rng.normal(size=n).astype(np.float32)
            call = functools.partial(sketch.update, ids, first, num_threads=1)
            seconds += timing.timed(call)
        found[f"{case}, the first {n * fill / 1e6:g} M values"] = {
            TWML_OPS: {"median": seconds / fill, "values": n}
        }
        runs[f"{case}, after those", TWML_OPS] = lambda i, s=sketch, ids=ids: s.update(
            ids, values[i], num_threads=1
        )
    if importlib.util.find_spec("datasketches") is not None:
        kll = _kll()
        for first in values:
            kll.update(-first)
        runs["1 feature, after those", DATASKETCHES] = lambda i: kll.update(values[i])
    log("timing sketches")
    for (case, name), t in timing.interleave(runs, range(len(values)), rounds=rounds).items():
        found.setdefault(case, {})[name] = {**asdict(t), "values": n}
    return found


def _kll() -> Any:
    """A KLL sketch of datasketches, with the smallest size that guarantees EPSILON."""
    from datasketches import kll_floats_sketch

    k = 8
    while kll_floats_sketch.get_normalized_rank_error(k, False) > EPSILON:
        k += 8
    return kll_floats_sketch(k)


def _errors(n: int, log: Log) -> dict[str, Any]:
    """The largest rank error over all values, as a fraction of n, and the size in bytes."""
    from twml_ops.core import QuantileSketch

    rng = np.random.default_rng(2)
    streams = {
        "sorted": np.arange(n),
        "reversed": np.arange(n)[::-1],
        "normal": rng.normal(size=n),
        "heavy-tailed": rng.standard_cauchy(n) ** 3,
        "zoom in": np.where(np.arange(n) % 2, 2 * n - np.arange(n), np.arange(n)),
        "few values (Zipf 2)": np.minimum(rng.zipf(2.0, n), 200),
    }
    found: dict[str, Any] = {}
    for name, stream in streams.items():
        log(f"rank errors: {name}")
        values = stream.astype(np.float32)
        at = np.unique(values)[:: max(1, n // 20_000)]
        exact = np.searchsorted(np.sort(values), at, "right") / n
        sketch = QuantileSketch(EPSILON)
        sketch.update(np.zeros(n, np.int64), values)
        ranks = sketch.ranks(np.zeros(len(at), np.int64), at) / n
        bound = sketch.describe([0])["rank_error"][0] / n
        found[name] = {
            TWML_OPS: {
                "error": float(np.abs(ranks - exact).max()),
                "bound": float(bound),
                "bytes": 4 * float(sketch.describe([0])["held"][0]),
            }
        }
        if importlib.util.find_spec("datasketches") is not None:
            kll = _kll()
            kll.update(values)
            ranks = np.array([kll.get_rank(float(v), True) for v in at])
            found[name][DATASKETCHES] = {
                "error": float(np.abs(ranks - exact).max()),
                "bytes": float(len(kll.serialize())),
            }
    return found
