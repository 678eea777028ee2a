"""`python -m benchmarks.cluster_losses SOURCE`: `twml-ops train` in a cluster and in one process.

Each seed is trained in one process, and by `twml-ops launch` with the same options. The table has
the log loss on the evaluation data, the difference to one process, and the CPU seconds of all
processes. Each kind of source, such as criteo, has a table of its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables
from benchmarks.quality.page import difference_text

METRIC = "log_loss"
_PAGE = "parameter_server.md"
CLUSTERS = {
    "1 server, 1 worker": ["--ps", "1", "--workers", "1"],
    "1 server, 2 asynchronous workers": ["--ps", "1", "--workers", "2"],
    "1 server, 2 synchronous workers": ["--ps", "1", "--workers", "2"],
    "1 peer": ["--peers", "1"],
    "2 peers": ["--peers", "2"],
}
SYNCHRONOUS = ["--mode", "sync"]


def main(
    source: Annotated[str, typer.Argument(help="Data of `twml-ops train --data`.")],
    seeds: Annotated[int, typer.Option(min=1, help="Paired runs.")] = 5,
    only: Annotated[
        str, typer.Option(help="Clusters whose name contains one of these, separated by commas.")
    ] = "",
    docs: Annotated[Path | None, typer.Option(help="Folder of parameter_server.md.")] = None,
) -> None:
    """Prints the table."""
    asked = [name for name in CLUSTERS if any(part in name for part in only.split(","))]
    about = machine.describe(machine.command_line("benchmarks.cluster_losses"))
    found: dict[str, dict[str, Any]] = {}
    for name in ["one process", *asked]:
        found[name] = {str(seed): run(name, source, seed) for seed in range(seeds)}
    alone = found["one process"]
    rows = [
        [
            name,
            ", ".join(sorted({r["model"] for r in runs.values()})),
            f"{statistics.mean(r[METRIC] for r in runs.values()):.5f}",
            difference_text(runs, alone, METRIC),
            f"{statistics.median(r['cpu_seconds'] for r in runs.values()):.0f}",
            f"{statistics.median(r['seconds'] for r in runs.values()):.0f}",
        ]
        for name, runs in found.items()
    ]
    header = ["training", "model", "log loss", "− that of one process, 95 % interval"]
    header += ["CPU seconds", "seconds"]
    text = f"{tables.machine(about)}\n\n{tables.markdown(header, rows)}\n\nSeeds: {seeds}."
    print(text)
    if docs is not None:
        kind = source.partition(":")[0]
        json_file, page = tables.results_file(docs, "cluster_losses.json"), docs / _PAGE
        results = json.loads(json_file.read_text()) if json_file.exists() else {}
        results[kind] = {"about": about, "losses": found}
        sections = {f"cluster_losses_{kind}": text}
        tables.record(results, json_file, page, sections, "benchmarks/cluster_losses.py")


def run(name: str, source: str, seed: int) -> dict[str, Any]:
    """Trains once.

    Args:
        name: "one process", or a name of `CLUSTERS`.
        source: the data.
        seed: the seed.

    Returns:
        The model and the log loss of the run, the seconds, and the CPU seconds of all processes.
    """
    command = [sys.executable, "-m", "twml_ops.cli"]
    if name in CLUSTERS:
        command += ["launch", *CLUSTERS[name], "--"]
    command += ["train", "--data", source, "--seed", str(seed)]
    command += SYNCHRONOUS if "synchronous" in name.split() else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        before, start = _cpu_seconds(), time.perf_counter()
        subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        seconds, cpu = time.perf_counter() - start, _cpu_seconds() - before
        facts, metrics = (json.loads((out / f"{x}.json").read_text()) for x in ("run", "metrics"))
    result = {METRIC: metrics[METRIC], "auc": metrics["auc"], "model": facts["model"]}
    return {**result, "seconds": seconds, "cpu_seconds": cpu}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    typer.run(main)
