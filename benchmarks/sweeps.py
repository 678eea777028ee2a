"""Sweeps: the times of the forward pass and the SGD step along each axis of the workload."""

from __future__ import annotations

import gc
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.contender import FORWARD, SLICES, TWML_OPS
from benchmarks.kernels import Log, prepare
from benchmarks.machine import limit_threads
from benchmarks.workload import Workload, make_case

TASKS = (FORWARD, "sgd")
SELECTED = (  # twml_ops and, of each other package, the fastest contender in the main table
    TWML_OPS,
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
NUMPY_TAKE = "NumPy's take of each entry's row (1 thread)"
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
    """Measures along each axis in `only`; the other properties are taken from `base`.

    Args:
        base: the workload that is varied.
        threads: of every contender.
        rounds: turns of each contender.
        quick: use tiny sizes.
        log: receives progress messages.
        only: names of the axes.

    Returns:
        `axes`, which maps axis -> value -> task -> contender -> timing, and the parameters.
    """
    result: dict[str, dict[str, Any]] = {}
    for axis, values in (QUICK_AXES if quick else AXES).items():
        if axis not in only:
            continue
        result[axis] = {}
        for value in values:
            log(f"sweep: {axis} = {value}")
            result[axis][str(value)] = measure_point(base.replace(**{axis: value}), threads, rounds)
    if "input_dim" in only:
        sizes = QUICK_INPUT_DIMS if quick else INPUT_DIMS
        result["input_dim"] = measure_input_dims(base, sizes, rounds, log)
    counts = ((1,) if threads == 1 else (1, threads)) if "threads" in only else ()
    if counts:
        result["threads"] = {}
    for count in counts:
        log(f"sweep: threads = {count}")
        # A new process, because libraries cannot change the number of threads later.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            result["threads"][str(count)] = process.submit(
                _measure_point_in_process, base, count, rounds
            ).result()
    return {"workload": asdict(base), "rounds": rounds, "axes": result}


def merge_axes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Replaces axes of `old` by axes of `new`, whose machine is added to `machines`."""
    machines = dict.fromkeys(new["axes"], new["machine"])
    return {
        **old,
        "axes": {**old["axes"], **new["axes"]},
        "machines": {**old.get("machines", {}), **machines},
    }


def measure_point(workload: Workload, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Times the selected contenders on one workload: task -> contender -> timing."""
    number = 4
    case = make_case(workload, workload.batches(number), threads)
    result = {}
    for task in TASKS:  # one after the other, because of the memory of their tables
        prepared, _ = prepare(case, [task], only=SELECTED)
        runs = {name: p.run for (_, name), p in prepared.items()}
        times = timing.interleave(runs, range(number), rounds=rounds)
        result[task] = {name: asdict(t) for name, t in times.items()}
        del prepared, runs
        gc.collect()
    return result


def measure_input_dims(base: Workload, sizes: tuple[int, ...], rounds: int, log: Log) -> Points:
    """Times the SGD step of twml_ops on tables of several sizes; all touch the same number of rows.

    The number of active ids is that of the smallest table; larger tables spread them out. The times
    therefore show the effect of memory (page tables), not that of more or fewer distinct rows. For
    comparison, NumPy copies the row of each entry from the same memory.

    Args:
        base: the workload.
        sizes: rows of the tables.
        rounds: turns of each size.
        log: receives progress messages.
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
        batches = base.replace(input_dim=size, active_ids=sizes[0]).batches(number)
        inputs, ids[size] = csr_inputs(batches), [b.ids for b in batches]
        runs[size] = lambda i, step=step, inputs=inputs: step(*inputs[i], grad)
    times = timing.interleave(runs, range(number), rounds=rounds)
    copied = np.zeros((max(map(len, ids[sizes[0]])), base.units), np.float32)
    for size in sizes:
        # The view is created last, because steps cannot write in place while it exists.
        view = np.asarray(memoryview(tables[size].read_value()))
        runs[size] = lambda i, view=view, ids=ids[size]: view.take(
            ids[i], axis=0, out=copied[: len(ids[i])], mode="clip"
        )
    copies = timing.interleave(runs, range(number), rounds=rounds)
    return {
        str(n): {"sgd": {TWML_OPS: asdict(times[n]), NUMPY_TAKE: asdict(copies[n])}} for n in sizes
    }


def _measure_point_in_process(
    base: Workload, threads: int, rounds: int
) -> dict[str, dict[str, Any]]:
    limit_threads(threads)
    return measure_point(base, threads, rounds)
