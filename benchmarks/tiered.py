"""Training with a table of 10 times the cache, beside the same table in memory.

`python -m benchmarks.tiered --folder FOLDER`: for each skew of the ids, processes train in turns:
one with the table in memory, one with it in a file past the page cache (O_DIRECT), and one with it
in a file through the page cache. What the steps themselves take (gradients, sorted ids, traced
functions, input pipeline) is what the process with the table in memory takes beside its table. The
memory of those with files is limited (cgroup v1, for which root is needed) to what was asked for,
`Tiered.memory_bytes`, a tenth more, that of the steps, and 16 MiB for the kernel. The random reads
per second of the device are measured between the turns. A table is as fast as it can be at

    min(steps/s in memory, reads/s of the device / misses per step).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, row_stores, simulated_cache, tables
from benchmarks.json_process import JsonProcess
from benchmarks.tiered_process import workload_of

MEMORY, DIRECT, CACHED = "in memory", "O_DIRECT", "page cache"
WAYS = 16


def main(
    folder: Annotated[Path, typer.Option(help="On the device that is measured.")] = Path("."),
    rows: Annotated[int, typer.Option(min=160, help="Of the table.")] = 2**20,
    units: Annotated[int, typer.Option(min=1, help="Columns of the table.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of a batch.")] = 1024,
    skews: Annotated[str, typer.Option(help="Zipf exponents of the ids.")] = "1.05,1.2",
    policies: Annotated[str, typer.Option(help="Of the cache.")] = "lru,lfu",
    steps: Annotated[int, typer.Option(min=1, help="Of a turn.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each process.")] = 4,
    warm: Annotated[int, typer.Option(min=1, help="Steps before the turns.")] = 16,
    batches: Annotated[int, typer.Option(min=1, help="Different batches.")] = 40,
    ahead: Annotated[int, typer.Option(min=1, help="Batches that are announced.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Of each process.")] = 2,
    limit: Annotated[bool, typer.Option(help="Limits memory; needs root.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write them.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown file to put the table into.")] = None,
) -> None:
    """Compares tables in files with tables in memory."""
    described = machine.describe(machine.command_line("benchmarks.tiered"))
    found = []
    for policy in policies.split(","):
        for skew in map(float, skews.split(",")):
            setting = {
                "rows": rows,
                "units": units,
                "batch_size": batch_size,
                "skew": skew,
                "batches": batches,
                "ahead": ahead,
                "threads": threads,
                "limit": limit,
                "policy": policy,
            }
            found += measure(folder, setting, steps, rounds, warm)
            print_rows(found[-2:])
    result = {"machine": described, "results": found}
    text = f"{table(found)}\n\n{tables.machine(described)}"
    tables.record(result, json_file, page, {"training": text}, "benchmarks/tiered.py")


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
            f"of the bound; hit rate {r['hit_rate']:.4f} (simulated {r['simulated_hit_rate']:.4f}"
            f", without sets {r['fully_associative_hit_rate']:.4f}); a step misses "
            f"{r['misses_per_step']:.0f} and reads {r['reads_per_step']:.0f}; the table takes "
            f"{r['of_table'] >> 20} MiB, asked {r['asked'] >> 20}; the steps "
            f"{r['of_steps'] >> 20}; limit {r['limit'] >> 20}",
            flush=True,
        )


def measure(
    folder: Path, setting: dict[str, Any], steps: int, rounds: int, warm: int
) -> list[dict[str, Any]]:
    """Trains in turns.

    Args:
        folder: on the device that is measured.
        setting: sizes, skew, policy and others.
        steps: the number of steps of a turn.
        rounds: turns of each process.
        warm: steps before the turns.

    Returns:
        A dict for each way to keep the file.
    """
    cache_rows = max(WAYS, setting["rows"] // 10 // WAYS * WAYS)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        build = stack.enter_context(tempfile.TemporaryDirectory())
        program, _ = row_stores.compile_program(Path(build))
        in_memory = stack.enter_context(Trainer(setting | {"storage": None}))
        # In the first turn caches are filled and pages are touched.
        first = {MEMORY: in_memory.turn(warm)}
        trainers = {MEMORY: in_memory}
        of_steps = first[MEMORY]["resident"] - setting["rows"] * 8 * setting["units"]
        setting = setting | {"of_steps": max(0, of_steps)}
        for mode, direct in ((DIRECT, True), (CACHED, False)):
            storage = _storage(scratch, setting["policy"], cache_rows, direct)
            made = Trainer(setting | {"storage": storage})
            trainers[mode] = stack.enter_context(made)
            first[mode] = made.turn(warm)
        arguments = [scratch, str(setting["rows"]), str(8 * setting["units"]), "1.0"]
        reads: list[float] = []
        turns: dict[str, list[dict[str, Any]]] = {mode: [] for mode in trainers}
        for _ in range(rounds):
            for mode, trainer in trainers.items():
                if mode != MEMORY:
                    probe = row_stores.run(program, "probe", arguments, direct=True)
                    reads.append(probe["reads_per_second"])
                turns[mode].append(trainer.turn(steps))
    simulated = simulate(setting, cache_rows, warm, steps * rounds)
    memory_speed = _speed(turns[MEMORY])
    results = []
    for mode in (DIRECT, CACHED):
        total = {k: sum(t[k] for t in turns[mode]) for k in ("rows", "misses", "rows_read")}
        misses = total["misses"] / (steps * rounds)
        device = statistics.median(reads) / max(misses, 1e-9)
        speed = _speed(turns[mode])
        resident = max(t["resident"] for t in turns[mode])
        results.append(
            {
                **{k: setting[k] for k in ("rows", "units", "skew", "policy", "ahead")},
                "mode": mode,
                "cache_rows": cache_rows,
                "steps_per_second": speed,
                "memory_steps_per_second": memory_speed,
                "reads_per_second": statistics.median(reads),
                "device_steps_per_second": device,
                "of_bound": speed / min(memory_speed, device),
                "distinct_per_step": total["rows"] / (steps * rounds),
                "misses_per_step": misses,
                "reads_per_step": total["rows_read"] / (steps * rounds),
                "hit_rate": 1 - total["misses"] / total["rows"],
                **simulated,
                "asked": first[mode]["asked"],
                "resident": resident,
                "of_steps": setting["of_steps"],
                "of_table": resident - setting["of_steps"],
                "limit": first[mode]["limit"],
                "direct": turns[mode][-1]["direct"],
            }
        )
    return results


def _storage(folder: str, policy: str, cache_rows: int, direct: bool) -> dict[str, Any]:
    return {"path": folder, "cache_rows": cache_rows, "policy": policy, "direct": direct}


def _speed(turns: Sequence[dict[str, Any]]) -> float:
    seconds = [s for turn in turns for s in turn["seconds"]]
    return len(seconds) / sum(seconds)


class Trainer(JsonProcess):
    """A process that trains in turns.

    Args:
        setting: for benchmarks/tiered_process.py.
    """

    def __init__(self, setting: dict[str, Any]) -> None:
        super().__init__("benchmarks.tiered_process", setting, {"TF_CPP_MIN_LOG_LEVEL": "3"})

    def turn(self, steps: int) -> dict[str, Any]:
        """Trains some steps.

        Args:
            steps: how many.

        Returns:
            What the process has measured.
        """
        return self._ask(steps)


def simulate(setting: dict[str, Any], cache_rows: int, warm: int, steps: int) -> dict[str, float]:
    """The hit rates of simulated caches with the same policy.

    Args:
        setting: sizes, skew and policy.
        cache_rows: size of the cache.
        warm: lookups before those that count.
        steps: lookups that count.

    Returns:
        That of the cache with sets, and that of a fully associative one.
    """
    workload = workload_of(setting)
    distinct = [simulated_cache.in_order(b.ids) for b in workload.batches(setting["batches"])]
    lookups = [distinct[step % len(distinct)] for step in range(warm + steps)]
    policy = setting["policy"]
    caches = {
        "simulated_hit_rate": simulated_cache.SetAssociative(cache_rows, policy),
        "fully_associative_hit_rate": simulated_cache.FULLY_ASSOCIATIVE[policy](cache_rows),
    }
    return {name: simulated_cache.hit_rate(c, lookups, warm) for name, c in caches.items()}


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown.

    Args:
        results: of `measure`.

    Returns:
        A table.
    """
    lines = [
        "| Zipf | policy | file | steps/s | in memory | device | of the bound | hit rate "
        "| simulated | without sets | misses a step | MiB asked | of the table | of the steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        lines.append(
            f"| {r['skew']:g} | {r['policy']} | {r['mode']} | {r['steps_per_second']:.2f} "
            f"| {r['memory_steps_per_second']:.2f} | {r['device_steps_per_second']:.2f} "
            f"| {r['of_bound']:.2f} | {r['hit_rate']:.4f} | {r['simulated_hit_rate']:.4f} "
            f"| {r['fully_associative_hit_rate']:.4f} | {r['misses_per_step']:,.0f} "
            f"| {r['asked'] / 2**20:.0f} | {r['of_table'] / 2**20:.0f} "
            f"| {r['of_steps'] / 2**20:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
