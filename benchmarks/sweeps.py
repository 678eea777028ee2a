"""How the forward pass and the SGD step scale along each axis of the workload."""

from __future__ import annotations

import gc
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.contender import FORWARD, OURS, SLICES
from benchmarks.kernels import Log, prepare
from benchmarks.machine import limit_threads
from benchmarks.workload import Workload, make_case

TASKS = (FORWARD, "sgd")
SELECTED = (  # ours and, of each package, what the main table shows to be its fastest
    OURS,
    SLICES,
    "TF embedding_lookup_sparse, fast path",
    "TF embedding_lookup_sparse + Keras SGD",
    "torch embedding_bag",
    "torch embedding_bag + SGD",
)
AXES: dict[str, tuple[float, ...]] = {
    "units": (1, 8, 50, 64, 128, 400),
    "batch_size": (1, 16, 256, 1024, 4096, 16384),
    "row_length": (1, 10, 100, 200, 1000),
    "skew": (0, 0.8, 1.05, 1.2, 1.5),
}
INPUT_DIMS = (2**18, 2**20, 2**22, 2**24)
NAMES = (*AXES, "input_dim", "threads")
BARE = "NumPy's take of each entry's row (1 thread)"
QUICK_AXES: dict[str, tuple[float, ...]] = {axis: values[:2] for axis, values in AXES.items()}
QUICK_INPUT_DIMS = (2**10, 2**12)
Points = dict[str, dict[str, dict[str, Any]]]  # value -> task -> contender -> timing


def measure(
    base: Workload,
    *,
    threads: int,
    rounds: int,
    quick: bool,
    log: Log,
    only: Collection[str] = NAMES,
) -> dict[str, dict[str, Any]]:
    """Every axis in `only`, the others as in `base`.

    Returns:
        axis -> value -> task -> contender -> timing, as plain data.
    """
    result: dict[str, dict[str, Any]] = {}
    for axis, values in (QUICK_AXES if quick else AXES).items():
        if axis not in only:
            continue
        result[axis] = {}
        for value in values:
            log(f"sweep: {axis} = {value}")
            result[axis][str(value)] = point(base.with_(**{axis: value}), threads, rounds)
    if "input_dim" in only:
        sizes = QUICK_INPUT_DIMS if quick else INPUT_DIMS
        result["input_dim"] = input_dims(base, sizes, rounds, log)
    counts = ((1,) if threads == 1 else (1, threads)) if "threads" in only else ()
    if counts:
        result["threads"] = {}
    for count in counts:
        log(f"sweep: threads = {count}")
        # A process of its own: no library changes its mind about threads later.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            result["threads"][str(count)] = process.submit(
                _point_of_threads, base, count, rounds
            ).result()
    return {"workload": asdict(base), "rounds": rounds, "axes": result}


def joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Old results with the newly swept axes among them, which say by themselves how they ran."""
    own = dict.fromkeys(new["axes"], new["machine"])
    return {
        **old,
        "axes": {**old["axes"], **new["axes"]},
        "machines": {**old.get("machines", {}), **own},
    }


def point(workload: Workload, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The selected contenders on one workload: task -> contender -> timing."""
    number = 4
    case = make_case(workload, workload.batches(number), threads)
    result = {}
    for task in TASKS:  # one after the other: their tables need the memory
        running, _ = prepare(case, [task], only=SELECTED)
        runs = {name: r.run for (_, name), r in running.items()}
        times = timing.interleave(runs, range(number), rounds=rounds)
        result[task] = {name: asdict(t) for name, t in times.items()}
        del running, runs
        gc.collect()
    return result


def input_dims(base: Workload, sizes: tuple[int, ...], rounds: int, log: Log) -> Points:
    """Our SGD step on tables of several sizes at once, the same rows touched in each.

    The ids are drawn from as many rows as the smallest table has, spread over the larger ones, so
    what is left to see is what memory does (page tables), not more or fewer distinct rows. To see
    that without us, NumPy then copies the row of each entry out of the same memory.
    """
    import tensorflow as tf

    from benchmarks.contenders.twml import fused_step_on
    from benchmarks.tf_support import csr_inputs
    from twml_ops.ops._tape import tf_variable

    runs, tables, ids = {}, {}, {}
    number = 4
    grad = tf.random.normal([base.batch_size, base.units])
    for size in sizes:
        log(f"sweep: input_dim = {size}")
        layer = tf.keras.layers.Layer()
        variable = layer.add_weight(name="table", shape=(size, base.units), initializer="ones")
        tables[size] = tf_variable(variable)
        step = fused_step_on("sgd", variable, tables[size])
        batches = base.with_(input_dim=size, active_ids=sizes[0]).batches(number)
        inputs, ids[size] = csr_inputs(batches), [b.ids for b in batches]
        runs[size] = lambda i, step=step, inputs=inputs: step(*inputs[i], grad)
    times = timing.interleave(runs, range(number), rounds=rounds)
    copied = np.zeros((max(map(len, ids[sizes[0]])), base.units), np.float32)
    for size in sizes:
        # A view, only now: while it is there, no step could write in place.
        view = np.asarray(memoryview(tables[size].read_value()))
        runs[size] = lambda i, view=view, ids=ids[size]: view.take(
            ids[i], axis=0, out=copied[: len(ids[i])], mode="clip"
        )
    bare = timing.interleave(runs, range(number), rounds=rounds)
    return {str(n): {"sgd": {OURS: asdict(times[n]), BARE: asdict(bare[n])}} for n in sizes}


def _point_of_threads(base: Workload, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    limit_threads(threads)
    return point(base, threads, rounds)
