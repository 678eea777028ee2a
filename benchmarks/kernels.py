"""The main table: forward pass and whole step of every contender, beside the floor."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks import floor, reference, timing
from benchmarks.contender import FORWARD, NotOffered, Running, contenders
from benchmarks.workload import Batch, Case, Workload, make_case

# Timed together, and few enough that their tables fit into 24 GiB.
GROUPS = ([FORWARD], ["sgd"], ["adagrad", "rowwise_adagrad"], ["lazy_adam"])
Key = tuple[str, str]  # task, contender
Log = Callable[[str], None]


def measure(
    workload: Workload, skews: Mapping[str, float], *, threads: int, rounds: int, log: Log
) -> dict[str, Any]:
    """Times every contender on the same batches of each distribution of ids.

    Args:
        workload: sizes; its own skew is not used.
        skews: name of a distribution -> Zipf exponent.
        threads: for everyone.
        rounds: turns of each contender on each distribution.
        log: told what is going on.

    Returns:
        Plain data: `times[task][contender][distribution]` in seconds, `skipped[task][contender]`
        the reason, `floors[task][distribution]`, and what was run.
    """
    number = 8
    batches: list[Batch] = []
    of: dict[str, range] = {}
    for name, skew in skews.items():
        of[name] = range(len(batches), len(batches) + number)
        batches += workload.with_(skew=skew).batches(number)
    case = make_case(workload, batches, threads)
    probe = floor.Probe(threads, megabytes=512 if case.table.nbytes > 2**28 else 64)
    times: dict[str, dict[str, dict[str, Any]]] = {}
    skipped: dict[str, dict[str, str]] = {}
    bandwidths = []
    dim = workload.units
    for tasks in GROUPS:
        running, missing = prepare(case, tasks, log)
        for (task, name), why in missing.items():
            skipped.setdefault(task, {})[name] = why
        for distribution, indices in of.items():
            log(f"timing {' and '.join(tasks)}, {distribution} ids")
            result = timing.interleave(
                {**{key: r.run for key, r in running.items()}, **_probe_runs(probe)},
                indices,
                rounds=rounds,
            )
            read, update = (result.pop(key).median for key in _probe_runs(probe))
            bandwidths.append(probe.bandwidth(read, update))
            for (task, name), t in result.items():
                times.setdefault(task, {}).setdefault(name, {})[distribution] = asdict(t)
        running.clear()
        gc.collect()
    # The best seen, so that noise cannot make the floor look nearer than it is.
    best = floor.Bandwidth(max(b.read for b in bandwidths), max(b.update for b in bandwidths))
    return {
        "workload": asdict(workload),
        "threads": threads,
        "rounds": rounds,
        "bandwidth": asdict(best),
        "unique": {d: float(np.mean([batches[i].unique for i in r])) for d, r in of.items()},
        "floors": {
            task: {d: _mean_floor(task, [batches[i] for i in r], dim, best) for d, r in of.items()}
            for tasks in GROUPS
            for task in tasks
        },
        "times": times,
        "skipped": skipped,
    }


def prepare(
    case: Case,
    tasks: Sequence[str],
    log: Log = lambda _: None,
    only: Collection[str] | None = None,
) -> tuple[dict[Key, Running], dict[Key, str]]:
    """Prepares contenders and checks each one's first step.

    Args:
        case: what to run on.
        tasks: which.
        log: told about each.
        only: names of contenders; all if None.

    Returns:
        Those that work, and why the others do not.
    """
    running: dict[Key, Running] = {}
    missing: dict[Key, str] = {}
    for task in tasks:
        for c in contenders(task):
            if only is not None and c.name not in only:
                continue
            key, why = (task, c.name), c.missing
            if c.prepare:
                log(f"checking {task}: {c.name}")
                try:
                    candidate = c.prepare(case)
                    why = reference.check(candidate, case, None if task == FORWARD else task)
                    if not why:
                        running[key] = candidate
                except NotOffered as e:
                    why = str(e)
            if why:
                missing[key] = why
    return running, missing


def _mean_floor(task: str, batches: Sequence[Batch], dim: int, bandwidth: floor.Bandwidth) -> float:
    if task == FORWARD:
        floors = [floor.forward_seconds(b, dim, bandwidth) for b in batches]
    else:
        floors = [floor.step_seconds(b, dim, task, bandwidth) for b in batches]
    return float(np.mean(floors))


def _probe_runs(probe: floor.Probe) -> dict[Key, Callable[[int], object]]:
    return {("memory", name): run for name, run in probe.runs().items()}
