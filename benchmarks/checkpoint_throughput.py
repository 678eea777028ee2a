"""Measures what a checkpoint every minute costs the training beside it.

    python -m benchmarks.checkpoint_throughput [--rows N] [--units D] [--rounds R] [--json FILE]

A checkpoint is written while steps run, and about as many steps run without one; the order of the
two is random. The difference of their times is what a checkpoint costs: the copy, for which the
training waits, and what the writing thread takes from the processor and the memory. The throughput
is that of a training that loses so much every minute. Between two checkpoints steps run until about
a tenth of the rows has changed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, tables
from benchmarks.checkpoints import Training
from twml_ops.checkpoint import CheckpointManager, TablePolicy

WAYS: dict[str, tuple[str, dict[str, int | None], bool]] = {
    "full, training waits": ("full", {}, False),
    "full": ("full", {}, True),
    "consecutive": ("consecutive", {}, True),
    "consecutive, 8 bits": ("consecutive", {"*": 8}, True),
}
"""Policy, bits, and whether a thread writes."""

MINUTE = 60.0


class Clock:
    """Seconds and processor seconds, of all threads, since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """(seconds, processor seconds)."""
        seconds, cpu = self._start
        return time.perf_counter() - seconds, time.process_time() - cpu


def measure(
    training: Training, way: str, rounds: int, share: float, batches: list[Any]
) -> dict[str, Any]:
    """The costs of a checkpoint written in one way.

    Args:
        training: what is trained.
        way: a key of `WAYS`.
        rounds: number of pairs.
        share: the share of the rows that change between two checkpoints.
        batches: the batches of the steps, in turn.

    Returns:
        One line of the table.
    """
    policy, bits, background = WAYS[way]
    stalls, costs, cpu_costs, sizes, steps_done = [], [], [], [], []
    position = 0

    def step() -> None:
        nonlocal position
        training.step(*batches[position % len(batches)])
        position += 1

    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        CheckpointManager(
            folder, keep=1, background=background, tables=TablePolicy(policy, bits)
        ) as manager,
    ):
        manager.save(0, training.variables(), {})  # the first one has all rows
        manager.wait()
        for number in range(1, rounds + 1):
            seen = np.zeros(training.rows, np.bool_)
            while seen.mean() < share:
                seen[batches[position % len(batches)][0].numpy()] = True
                step()
            begin = position
            times: dict[bool, tuple[float, float]] = {}
            done: dict[bool, int] = {}
            for with_checkpoint in training.rng.permutation([False, True]):
                position = begin
                clock = Clock()
                if with_checkpoint:
                    manager.save(number, training.variables(), {})
                    stalls.append(clock.read()[0])
                    while manager.busy or position - begin < max([1, *done.values()]):
                        step()
                    manager.wait()
                else:
                    # As many as with the checkpoint; if they come first, as with the last one.
                    while position - begin < max([1, *done.values(), *steps_done[-1:]]):
                        step()
                times[bool(with_checkpoint)] = clock.read()
                done[bool(with_checkpoint)] = position - begin
            steps_done.append(done[True])
            if number == 1:
                continue  # caches and the allocator are warm after it
            more = done[True] / done[False]
            costs.append(times[True][0] - more * times[False][0])
            cpu_costs.append(times[True][1] - more * times[False][1])
            newest = manager.latest()
            assert newest is not None
            sizes.append(newest.manifest.data_bytes)
    cost, cpu = statistics.median(costs), statistics.median(cpu_costs)
    return {
        "way": way,
        "MB": statistics.mean(sizes) / 1e6,
        "stall ms": 1e3 * statistics.median(stalls),
        "cost seconds": cost,
        "cost seconds, quartiles": np.quantile(costs, [0.25, 0.75]).tolist(),
        "cost cpu seconds": cpu,
        "throughput": 1 - max(cost, 0) / MINUTE,
        "throughput by cpu": 1 - max(cpu, 0) / MINUTE,
    }


def markdown(found: dict[str, Any]) -> str:
    """The section of docs/checkpoints.md.

    Args:
        found: what `main` has measured.
    """
    lines = [
        f"A table of {found['rows']:,} rows of {found['units']} weights with their accumulators, "
        f"of which about {found['share']:.0%} change between two checkpoints:",
        "",
        "| checkpoints | MB | training waits, ms | seconds lost | throughput with one a minute | "
        "by processor time |",
        "|---|---|---|---|---|---|",
        *(
            f"| {each['way']} | {each['MB']:,.1f} | {each['stall ms']:,.0f} | "
            f"{each['cost seconds']:.2f} | {each['throughput']:.1%} | "
            f"{each['throughput by cpu']:.1%} |"
            for each in found["ways"]
        ),
        "",
        tables.machine(found["machine"]),
    ]
    return "\n".join(lines)


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 20, help="rows of the table")
    parser.add_argument("--units", type=int, default=32, help="width of the table")
    parser.add_argument("--zipf", type=float, default=1.05, help="exponent of the traffic")
    parser.add_argument("--share", type=float, default=0.1, help="rows that change in between")
    parser.add_argument("--rounds", type=int, default=15, help="checkpoints of each kind")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--page", type=Path, help="guide that gets the table")
    options = parser.parse_args()
    training = Training(options.rows, options.units, options.zipf, seed=1)
    batches = [training.batch() for _ in range(200)]
    lines = []
    for way in WAYS:
        lines.append(measure(training, way, options.rounds, options.share, batches))
        print(json.dumps(lines[-1]), flush=True)
    command = machine.command_line("benchmarks.checkpoint_throughput")
    found = {
        "machine": machine.describe(command),
        "rows": options.rows,
        "units": options.units,
        "share": options.share,
        "ways": lines,
    }
    sections = {"throughput": markdown(found)}
    tables.record(
        found, options.json, options.page, sections, "benchmarks/checkpoint_throughput.py"
    )


if __name__ == "__main__":
    main()
