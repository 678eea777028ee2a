"""The main benchmark: forward pass and training step of every contender, and the lower bound."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks import bandwidth_floor, reference, timing
from benchmarks.bandwidth_floor import Bandwidth
from benchmarks.contender import FORWARD, NotAvailable, PreparedContender, contenders_for
from benchmarks.random_row_floor import RandomRowProbe
from benchmarks.workload import Batch, Case, Workload, make_case

# The contenders of a group are timed together; their tables fit into 24 GiB.
GROUPS = ([FORWARD], ["sgd"], ["adagrad", "rowwise_adagrad"], ["lazy_adam"])
Key = tuple[str, str]  # task, contender
Log = Callable[[str], None]


def measure(
    workload: Workload, skews: Mapping[str, float], *, threads: int, rounds: int, log: Log
) -> dict[str, Any]:
    """Times every contender on the same batches of each distribution of ids.

    Args:
        workload: sizes; `skew` is not used.
        skews: name of a distribution of ids -> Zipf exponent.
        threads: of every contender.
        rounds: turns of each contender on each distribution.
        log: receives progress messages.

    Returns:
        JSON-compatible results: `times[task][contender][distribution]` and
        `floors[task][distribution]` and `row_floors[task][distribution]` in seconds,
        `skipped[task][contender]` with the reason, and the parameters.
    """
    number = 8
    batches: list[Batch] = []
    indices_of: dict[str, range] = {}
    for name, skew in skews.items():
        indices_of[name] = range(len(batches), len(batches) + number)
        batches += workload.replace(skew=skew).batches(number)
    case = make_case(workload, batches, threads)
    probe = bandwidth_floor.BandwidthProbe(
        threads, megabytes=512 if case.table.nbytes > 2**28 else 64
    )
    row_probe = RandomRowProbe(case.table, batches, threads)
    probe_runs = {
        ("memory", name): run for name, run in {**probe.runs(), **row_probe.runs()}.items()
    }
    times: dict[str, dict[str, dict[str, Any]]] = {}
    skipped: dict[str, dict[str, str]] = {}
    streams: list[Bandwidth] = []
    rows: dict[str, list[Bandwidth]] = {d: [] for d in skews}
    dim = workload.units
    for tasks in GROUPS:
        prepared, missing = prepare(case, tasks, log)
        for (task, name), why in missing.items():
            skipped.setdefault(task, {})[name] = why
        for distribution, indices in indices_of.items():
            log(f"timing {' and '.join(tasks)}, {distribution} ids")
            result = timing.interleave(
                {**{key: r.run for key, r in prepared.items()}, **probe_runs},
                indices,
                rounds=rounds,
            )
            read, update, *of_rows = (result.pop(key).median for key in probe_runs)
            streams.append(probe.bandwidth(read, update))
            rows[distribution].append(row_probe.bandwidth(indices, *of_rows))
            for (task, name), t in result.items():
                times.setdefault(task, {}).setdefault(name, {})[distribution] = asdict(t)
        prepared.clear()
        gc.collect()
    stream = _best(streams)
    best_rows = {d: _best(found) for d, found in rows.items()}
    return {
        "workload": asdict(workload),
        "threads": threads,
        "rounds": rounds,
        "bandwidth": asdict(stream),
        "row_bandwidth": {d: asdict(b) for d, b in best_rows.items()},
        "unique": {
            d: float(np.mean([batches[i].unique for i in r])) for d, r in indices_of.items()
        },
        "floors": _floors(batches, indices_of, dim, stream, dict.fromkeys(skews, stream)),
        "row_floors": _floors(batches, indices_of, dim, stream, best_rows),
        "times": times,
        "skipped": skipped,
    }


def prepare(
    case: Case,
    tasks: Sequence[str],
    log: Log = lambda _: None,
    only: Collection[str] | None = None,
) -> tuple[dict[Key, PreparedContender], dict[Key, str]]:
    """Prepares contenders and checks the first step of each.

    Args:
        case: weights and batches.
        tasks: tasks whose contenders are prepared.
        log: receives progress messages.
        only: names of contenders; None for all.

    Returns:
        The contenders that passed the check, and the reasons why the others cannot be timed.
    """
    prepared: dict[Key, PreparedContender] = {}
    missing: dict[Key, str] = {}
    for task in tasks:
        for c in contenders_for(task):
            if only is not None and c.name not in only:
                continue
            key, why = (task, c.name), c.missing
            if c.prepare:
                log(f"checking {task}: {c.name}")
                try:
                    candidate = c.prepare(case)
                    why = reference.check(candidate, case, None if task == FORWARD else task)
                    if not why:
                        prepared[key] = candidate
                except NotAvailable as e:
                    why = str(e)
            if why:
                missing[key] = why
    return prepared, missing


def _best(bandwidths: Sequence[Bandwidth]) -> Bandwidth:
    """The best of all groups of contenders, because noise must not raise the lower bound."""
    return Bandwidth(max(b.read for b in bandwidths), max(b.update for b in bandwidths))


def _floors(
    batches: Sequence[Batch],
    indices_of: Mapping[str, range],
    dim: int,
    stream: Bandwidth,
    rows: Mapping[str, Bandwidth],
) -> dict[str, dict[str, float]]:
    """The mean lower bound in seconds, by task and distribution of ids."""

    def floor(task: str, batch: Batch, of_rows: Bandwidth) -> float:
        if task == FORWARD:
            return bandwidth_floor.forward_seconds(batch, dim, stream, of_rows)
        return bandwidth_floor.step_seconds(batch, dim, task, stream, of_rows)

    return {
        task: {
            d: float(np.mean([floor(task, batches[i], rows[d]) for i in indices]))
            for d, indices in indices_of.items()
        }
        for tasks in GROUPS
        for task in tasks
    }
