"""`python -m benchmarks.run`: measures, and writes docs/performance.md and the raw results."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import features, kernels, machine, plots, readme_summary, sweeps, tables
from benchmarks.workload import QUICK, Workload

SKEWS = {"Zipf 1.05": 1.05, "uniform": 0.0}
PARTS = ("kernels", "model", "sweeps", "features", "mirrored", "distributed")
Log = Callable[[str], None]


def main(
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(PARTS)}. Default: kernels model.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Tiny sizes, as a test.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every contender.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 11,
    axes: Annotated[
        list[str] | None, typer.Option("--axis", help="Axes of the sweeps. Default: all.")
    ] = None,
    docs: Annotated[Path, typer.Option(help="Folder of performance.md.")] = Path("docs"),
    render: Annotated[
        bool, typer.Option(help="Write the tables from the raw results without measuring.")
    ] = False,
) -> None:
    """Measures twml_ops and every peer that is installed."""
    wanted = parts or ["kernels", "model"]
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        raise typer.BadParameter(f"no such part: {', '.join(unknown)}")
    if set(axes or ()) - set(sweeps.NAMES):
        raise typer.BadParameter(f"--axis is one of {', '.join(sweeps.NAMES)}")
    raw = _load(docs)
    if not render:
        machine.limit_threads(threads)
        if "mirrored" in wanted:
            machine.create_logical_cpus(2)
        log = _progress_log()
        command = machine.command_line("benchmarks.run")
        for part in wanted:
            if part == "distributed":
                raw = measure_distributed(docs, command, quick=quick)
                continue
            about = machine.describe(command)
            turns = 2 if quick else rounds
            found = {"machine": about, **measure(part, threads, turns, quick, log, axes)}
            if axes and part in raw:
                found = sweeps.merge_axes(raw[part], found)
            raw[part] = _round_floats(found)
            _save(raw, docs)
    write(raw, docs)


def measure(
    part: str,
    threads: int,
    rounds: int,
    quick: bool,
    log: Log,
    axes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Measures one part.

    Args:
        part: one of PARTS, except "distributed".
        threads: of every contender.
        rounds: turns of each contender.
        quick: use tiny sizes.
        log: receives progress messages.
        axes: the axes of the sweeps; None for all.

    Returns:
        JSON-compatible results.
    """
    workload = QUICK if quick else Workload()
    if part == "kernels":
        return kernels.measure(workload, SKEWS, threads=threads, rounds=rounds, log=log)
    rounds = min(rounds, 5)  # the other parts take longer and need less precision
    if part == "features":
        return features.measure(threads=threads, rounds=rounds, quick=quick, log=log)
    if part == "sweeps":
        wanted = axes or sweeps.NAMES
        return sweeps.measure(
            workload, threads=threads, rounds=rounds, quick=quick, log=log, only=wanted
        )
    from benchmarks import mirrored, model  # they import TensorFlow, so the threads are set first

    if part == "mirrored":
        return mirrored.measure(workload, rounds=rounds, quick=quick, log=log)
    if not quick:
        return model.measure(workload, rounds=rounds, log=log)
    few = {"steps": 20, "stock_steps": 2, "batch_sizes": (16, 32), "rules": ("sgd",)}
    return model.measure(workload, rounds=1, log=log, **few)


def measure_distributed(
    docs: Path, command: str, *, seconds: float = 6.0, quick: bool = False, only: str = ""
) -> dict[str, Any]:
    """Measures distributed training on hosts that are network namespaces of this machine.

    The results so far are written even if the measurement is interrupted.

    Args:
        docs: folder of performance.md.
        command: the command that the page names.
        seconds: for each cell.
        quick: use tiny sizes.
        only: measure cells whose names contain this text; the other results stay.

    Returns:
        All raw results.

    Raises:
        NetworkError: network namespaces cannot be created.
    """
    from benchmarks.distributed import grid

    raw = _load(docs)
    found = raw.get("distributed", {}) if only else {}
    about = machine.describe(command)
    try:
        grid.measure(seconds=seconds, quick=quick, only=only, log=_progress_log(), found=found)
    finally:
        if found.get("cells"):
            raw["distributed"] = _round_floats({**found, "machine": about})
            _save(raw, docs)
            write(raw, docs)
    return raw


def write(raw: dict[str, Any], docs: Path) -> None:
    """Writes the tables and plots of all raw results, and the section of the README."""
    document, readme = docs / "performance.md", docs.parent / "README.md"
    if readme.exists() and {"kernels", "model"} <= raw.keys():
        tables.insert(readme, "speed", readme_summary.section(raw["kernels"], raw["model"]))
    if "kernels" in raw:
        tables.insert(document, "kernels", tables.kernels(raw["kernels"]))
    if "model" in raw:
        tables.insert(document, "model", tables.model(raw["model"]))
    if "features" in raw:
        tables.insert(document, "features", tables.features(raw["features"]))
    if "mirrored" in raw:
        tables.insert(document, "mirrored", tables.mirrored(raw["mirrored"]))
    if "sweeps" in raw:
        for axis, points in raw["sweeps"]["axes"].items():
            plots.draw(axis, points, docs / "img" / f"{axis}.png")
        tables.insert(document, "sweeps", tables.sweeps(raw["sweeps"], "img"))
    if "distributed" in raw:
        from benchmarks.distributed import page

        page.draw(raw["distributed"]["cells"], docs / "img" / page.PICTURE)
        tables.insert(document, "distributed", page.section(raw["distributed"], "img"))


def _load(docs: Path) -> dict[str, Any]:
    path = tables.results_file(docs, "performance.json")
    raw: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return raw


def _save(raw: dict[str, Any], docs: Path) -> None:
    tables.write_results(tables.results_file(docs, "performance.json"), raw)


def _progress_log() -> Log:
    start = time.monotonic()
    return lambda line: print(
        f"[{time.monotonic() - start:6.1f} s] {line}", file=sys.stderr, flush=True
    )


def _round_floats(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _round_floats(value) for key, value in data.items()}
    return float(f"{data:.4g}") if isinstance(data, float) else data


if __name__ == "__main__":
    typer.run(main)
