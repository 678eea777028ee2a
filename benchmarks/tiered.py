"""Training with a table of 10 times the cache, beside the same table in memory.

`python -m benchmarks.tiered --folder FOLDER`: for each skew of the ids, processes train in turns:
one with the table in memory, one with it in a file past the page cache (O_DIRECT), and one with it
in a file through the page cache. Those with files have so much memory only as was asked for
(cgroup v1, for which root is needed). The random reads per second of the device are measured
between the turns. A table is as fast as it can be at

    min(steps/s in memory, reads/s of the device / rows read per step).
"""

from __future__ import annotations

import heapq
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine, row_stores
from benchmarks.tiered_process import group_of
from benchmarks.workload import Workload

MEMORY, DIRECT, CACHED = "in memory", "O_DIRECT", "page cache"
WAYS = 16


def main(
    folder: Annotated[Path, typer.Option(help="On the device that is measured.")] = Path("."),
    rows: Annotated[int, typer.Option(min=160, help="Of the table.")] = 2**20,
    units: Annotated[int, typer.Option(min=1, help="Columns of the table.")] = 128,
    skews: Annotated[str, typer.Option(help="Zipf exponents of the ids.")] = "1.05,1.2,1.4",
    policies: Annotated[str, typer.Option(help="Of the cache.")] = "lru,lfu",
    steps: Annotated[int, typer.Option(min=1, help="Of a turn.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each process.")] = 5,
    batches: Annotated[int, typer.Option(min=1, help="Different batches.")] = 48,
    ahead: Annotated[int, typer.Option(min=1, help="Batches that are announced.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Of each process.")] = 2,
    limit: Annotated[bool, typer.Option(help="Limits memory; needs root.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write them.")] = None,
) -> None:
    """Compares tables in files with tables in memory."""
    found = []
    for policy in policies.split(","):
        for skew in map(float, skews.split(",")):
            setting = {
                "rows": rows,
                "units": units,
                "skew": skew,
                "batches": batches,
                "ahead": ahead,
                "threads": threads,
                "limit": limit,
                "policy": policy,
            }
            found += measure(folder, setting, steps, rounds)
            print_rows(found[-2:])
    described = machine.describe("python -m benchmarks.tiered")
    print(described)
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": described, "results": found}, indent=2) + "\n")


def print_rows(found: Sequence[dict[str, Any]]) -> None:
    """Prints results, one line each.

    Args:
        found: of `measure`.
    """
    for r in found:
        speeds = [r[k] for k in ("steps_per_second", "memory_steps_per_second")]
        print(
            f"Zipf {r['skew']:<5} {r['policy']} {r['mode']:<11} {speeds[0]:6.2f} steps/s (memory "
            f"{speeds[1]:6.2f}, device {r['device_steps_per_second']:7.2f}): {r['of_bound']:.2f} "
            f"of the bound; hit rate {r['hit_rate']:.4f} (simulated {r['simulated_hit_rate']:.4f})"
            f"; rows read a step {r['reads_per_step']:.0f}; memory "
            f"{r['resident'] / r['asked']:.2f} of {r['asked'] >> 20} MiB",
            flush=True,
        )


def measure(folder: Path, setting: dict[str, Any], steps: int, rounds: int) -> list[dict[str, Any]]:
    """Trains in turns.

    Args:
        folder: on the device that is measured.
        setting: sizes, skew, policy and others.
        steps: of a turn.
        rounds: turns of each process.

    Returns:
        A dict for each way to keep the file.
    """
    cache_rows = max(WAYS, setting["rows"] // 10 // WAYS * WAYS)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        build = stack.enter_context(tempfile.TemporaryDirectory())
        program, _ = row_stores.compile_program(Path(build))
        trainers = {
            mode: stack.enter_context(
                Trainer(setting | {"storage": storage, "limit": setting["limit"] and bool(storage)})
            )
            for mode, storage in (
                (MEMORY, None),
                (DIRECT, _storage(scratch, setting["policy"], cache_rows, True)),
                (CACHED, _storage(scratch, setting["policy"], cache_rows, False)),
            )
        }
        arguments = [scratch, str(setting["rows"]), str(8 * setting["units"]), "1.0"]
        reads: list[float] = []
        turns: dict[str, list[dict[str, Any]]] = {mode: [] for mode in trainers}
        # In the first turn caches are filled and pages are touched.
        warm = setting["batches"]
        first = {mode: trainer.turn(warm) for mode, trainer in trainers.items()}
        for _ in range(rounds):
            for mode, trainer in trainers.items():
                if mode != MEMORY:
                    probe = row_stores.run(program, "probe", arguments, direct=True)
                    reads.append(probe["reads_per_second"])
                turns[mode].append(trainer.turn(steps))
    simulated = simulate(setting, cache_rows, warm, steps * rounds)
    in_memory = 1 / _median(turns[MEMORY])
    results = []
    for mode in (DIRECT, CACHED):
        total = {k: sum(t[k] for t in turns[mode]) for k in ("rows", "misses", "rows_read")}
        per_step = total["rows_read"] / (steps * rounds)
        device = statistics.median(reads) / max(per_step, 1e-9)
        speed = steps * rounds / sum(s for t in turns[mode] for s in t["seconds"])
        results.append(
            {
                **{k: setting[k] for k in ("rows", "units", "skew", "policy", "ahead")},
                "mode": mode,
                "cache_rows": cache_rows,
                "steps_per_second": speed,
                "memory_steps_per_second": in_memory,
                "reads_per_second": statistics.median(reads),
                "device_steps_per_second": device,
                "of_bound": speed / min(in_memory, device),
                "distinct_per_step": total["rows"] / (steps * rounds),
                "misses_per_step": total["misses"] / (steps * rounds),
                "reads_per_step": per_step,
                "hit_rate": 1 - total["misses"] / total["rows"],
                "simulated_hit_rate": simulated,
                "asked": first[mode]["asked"],
                "resident": max(t["resident"] for t in turns[mode]),
                "direct": turns[mode][-1]["direct"],
            }
        )
    return results


def _storage(folder: str, policy: str, cache_rows: int, direct: bool) -> dict[str, Any]:
    return {"path": folder, "cache_rows": cache_rows, "policy": policy, "direct": direct}


def _median(turns: Sequence[dict[str, Any]]) -> float:
    return statistics.median(s for turn in turns for s in turn["seconds"])


class Trainer:
    """A process that trains in turns.

    Args:
        setting: for benchmarks/tiered_process.py.
    """

    def __init__(self, setting: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tiered_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        self._send(json.dumps(setting))

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        group = group_of(self._process.pid)
        if group.is_dir():
            group.rmdir()

    def turn(self, steps: int) -> dict[str, Any]:
        """Trains some steps.

        Args:
            steps: how many.

        Returns:
            What the process has measured.
        """
        self._send(str(steps))
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def simulate(setting: dict[str, Any], cache_rows: int, warm: int, steps: int) -> float:
    """The hit rate of a fully associative cache with the same policy.

    Args:
        setting: sizes, skew and policy.
        cache_rows: size of the cache.
        warm: lookups before those that count.
        steps: lookups that count.

    Returns:
        Hits divided by distinct rows.
    """
    workload = Workload(setting["rows"], setting["units"], skew=setting["skew"])
    batches = workload.batches(setting["batches"])
    cache = (SimulatedLru if setting["policy"] == "lru" else SimulatedLfu)(cache_rows)
    distinct = [_in_order(batch.ids) for batch in batches]
    rows = hits = 0
    for step in range(warm + steps):
        ids = distinct[step % len(distinct)]
        found = cache.lookup(ids)
        if step >= warm:
            rows, hits = rows + len(ids), hits + found
    return hits / rows


def _in_order(ids: np.ndarray) -> list[int]:
    """The distinct ids in the order of their first occurrence."""
    unique, first = np.unique(ids, return_index=True)
    order: list[int] = unique[np.argsort(first)].tolist()
    return order


class SimulatedLru:
    """A cache from which the least recently used rows leave, except those of the current lookup.

    Args:
        size: number of rows.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: OrderedDict[int, None] = OrderedDict()

    def lookup(self, ids: Sequence[int]) -> int:
        """Uses rows.

        Args:
            ids: distinct ids.

        Returns:
            How many were in the cache.
        """
        hits = 0
        for i in ids:
            if i in self._rows:
                hits += 1
                self._rows.move_to_end(i)
        for i in ids:
            self._rows[i] = None
        while len(self._rows) > self._size:
            self._rows.popitem(last=False)
        return hits


class SimulatedLfu:
    """A cache from which the rows with the fewest lookups leave; of several the least recent one.

    Args:
        size: number of rows.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._uses: dict[int, tuple[int, int]] = {}  # id -> (lookups, the last one)
        self._heap: list[tuple[int, int, int]] = []
        self._now = 0

    def lookup(self, ids: Sequence[int]) -> int:
        """Uses rows.

        Args:
            ids: distinct ids.

        Returns:
            How many were in the cache.
        """
        self._now += 1
        hits = 0
        missing = []
        for i in ids:
            if i in self._uses:
                hits += 1
                self._use(i, self._uses[i][0] + 1)
            else:
                missing.append(i)
        pinned = []
        leaving = len(self._uses) + len(missing) - self._size
        while leaving > 0:
            entry = count, last, i = heapq.heappop(self._heap)
            if self._uses.get(i) != (count, last):
                continue  # it was used later
            if last == self._now:
                pinned.append(entry)
            else:
                del self._uses[i]
                leaving -= 1
        for entry in pinned:
            heapq.heappush(self._heap, entry)
        for i in missing:
            self._use(i, 1)
        return hits

    def _use(self, i: int, count: int) -> None:
        self._uses[i] = count, self._now
        heapq.heappush(self._heap, (count, self._now, i))


if __name__ == "__main__":
    typer.run(main)
