"""`python -m benchmarks.run`: measures, and writes docs/performance.md and its raw results."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import features, kernels, machine, plots, sweeps, tables
from benchmarks.workload import Workload

SKEWS = {"Zipf 1.05": 1.05, "uniform": 0.0}
QUICK = Workload(input_dim=2**12, units=16, batch_size=32, row_length=10)
PARTS = ("kernels", "model", "sweeps", "features", "mirrored")
Log = Callable[[str], None]


def main(
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(PARTS)}; default: kernels model")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Tiny sizes: shows that it runs, no more.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads for every contender.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 11,
    axes: Annotated[
        list[str] | None, typer.Option("--axis", help="Of the sweeps; default: all.")
    ] = None,
    docs: Annotated[Path, typer.Option(help="Where performance.md is.")] = Path("docs"),
    render: Annotated[
        bool, typer.Option(help="Only write the tables anew from the raw results.")
    ] = False,
) -> None:
    """Measures the sparse-linear kernels beside every peer that is installed."""
    wanted = parts or ["kernels", "model"]
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        raise typer.BadParameter(f"no such part: {', '.join(unknown)}")
    if set(axes or ()) - set(sweeps.NAMES):
        raise typer.BadParameter(f"--axis is one of {', '.join(sweeps.NAMES)}")
    raw_path = docs / "performance.json"
    raw: dict[str, Any] = json.loads(raw_path.read_text()) if raw_path.exists() else {}
    if not render:
        machine.limit_threads(threads)
        if "mirrored" in wanted:
            machine.split_cpu(2)
        log = _stopwatch()
        for part in wanted:
            about = machine.describe(" ".join(["python -m benchmarks.run", *sys.argv[1:]]))
            found = measure(part, threads, 2 if quick else rounds, quick, log, axes)
            found = {"machine": about, **found}
            if axes and part in raw:
                found = sweeps.joined(raw[part], found)
            raw[part] = _rounded(found)
            docs.mkdir(parents=True, exist_ok=True)
            raw_path.write_text(json.dumps(raw, indent=1) + "\n")
    write(raw, docs)


def measure(
    part: str,
    threads: int,
    rounds: int,
    quick: bool,
    log: Log,
    axes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The results of one part, as plain data."""
    workload = QUICK if quick else Workload()
    if part == "kernels":
        return kernels.measure(workload, SKEWS, threads=threads, rounds=rounds, log=log)
    rounds = min(rounds, 5)  # these take longer and need less precision
    if part == "features":
        return features.measure(threads=threads, rounds=rounds, quick=quick, log=log)
    if part == "sweeps":
        wanted = axes or sweeps.NAMES
        return sweeps.measure(
            workload, threads=threads, rounds=rounds, quick=quick, log=log, only=wanted
        )
    from benchmarks import mirrored, model  # after the threads are set: they import TensorFlow

    if part == "mirrored":
        return mirrored.measure(workload, rounds=rounds, quick=quick, log=log)
    if not quick:
        return model.measure(workload, rounds=rounds, log=log)
    few = {"steps": 20, "stock_steps": 2, "batch_sizes": (16, 32), "rules": ("sgd",)}
    return model.measure(workload, rounds=1, log=log, **few)


def write(raw: dict[str, Any], docs: Path) -> None:
    """The tables and pictures of all raw results there are."""
    document = docs / "performance.md"
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


def _stopwatch() -> Log:
    start = time.monotonic()
    return lambda line: print(
        f"[{time.monotonic() - start:6.1f} s] {line}", file=sys.stderr, flush=True
    )


def _rounded(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return float(f"{data:.4g}") if isinstance(data, float) else data


if __name__ == "__main__":
    typer.run(main)
