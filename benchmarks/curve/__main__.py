"""`sudo python -m benchmarks.curve`: steps/s of a cluster against its number of hosts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables
from benchmarks.curve.cells import WIRE, cells, default_share, learning_cells
from benchmarks.curve.jobs import described_jobs, measured_costs
from benchmarks.curve.measure import Limits, learn, measure
from benchmarks.curve.page import section
from benchmarks.curve.wire_cost import more_seconds
from benchmarks.distributed.grid import signals_as_exits
from benchmarks.distributed.network import NetworkError, unavailable
from benchmarks.distributed.process import HostError

ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
BY = "benchmarks/curve"
Results = dict[str, Any]


def main(
    only: Annotated[
        list[str], typer.Option(help="Measure cells with one of these texts in their names.")
    ] = [""],  # noqa: B006
    share: Annotated[
        float | None, typer.Option(help="Share of a core for each host; by default all fit.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds for each cell.")] = 20.0,
    losses: Annotated[
        int, typer.Option(help="Instead train on so many batches, and evaluate; 0: do not.")
    ] = 0,
    spare_cores: Annotated[
        list[int],
        typer.Option(
            "--spare-core",
            help="Another core that hosts may use as well until the limits come. May be repeated.",
        ),
    ] = [],  # noqa: B006
    quota_ms: Annotated[
        int, typer.Option(min=1, help="Milliseconds of a core that a host may use at once.")
    ] = 1,
    again: Annotated[bool, typer.Option(help="Measure cells that have results once more.")] = False,
    costs: Annotated[
        bool,
        typer.Option(
            help="Instead measure what the parts of a step cost, as `twml-ops plan --measure` does."
        ),
    ] = False,
    show: Annotated[bool, typer.Option(help="List the cells and exit.")] = False,
    docs: Annotated[Path, typer.Option(help="Folder of performance.md.")] = Path("docs"),
) -> None:
    """Measures the cells that have no result, each of which is written immediately."""
    every = learning_cells() if losses else cells()
    wanted = [cell for cell in every if any(text in cell.name for text in only)]
    if show:
        print(*(cell.name for cell in wanted), sep="\n")
        return
    reason = unavailable(cpu=True)
    if reason is not None:
        print(f"benchmarks.curve: {reason}", file=sys.stderr)
        raise SystemExit(1)
    file = tables.results_file(docs, "curve.json")
    share = default_share() if share is None else share
    limits = Limits(share, 1000 * quota_ms, tuple(spare_cores))
    found = load(file, share)
    os.environ.update(ENVIRONMENT)
    if costs:
        found["costs"], found["jobs"] = measured_costs(), described_jobs()
        cores = os.sched_getaffinity(0)
        found["wire"] = more_seconds(WIRE * 1e9 / 8 * share, cores)
        tables.write_results(file, found)
        return
    import_tensorflow()
    with signals_as_exits() as check_signals:
        for cell in wanted:
            check_signals()
            name = f"{losses} batches, {cell.name}" if losses else cell.name
            runs = found["learned" if losses else "cells"].setdefault(name, [])
            if runs and not again:
                continue
            print(name, file=sys.stderr)
            found["failed"].pop(name, None)
            try:
                runs.append(
                    learn(cell, limits, losses) if losses else measure(cell, limits, seconds)
                )
            except (HostError, NetworkError) as e:
                found["failed"][name] = str(e).splitlines()[0]
                print(f"{name} failed: {e}", file=sys.stderr)
            found["machine"] = machine.describe(machine.command_line("benchmarks.curve"))
            write(found, docs)
    write(found, docs)  # also if nothing was measured


def write(found: Results, docs: Path) -> None:
    """Writes the results and the page.

    Args:
        found: the results.
        docs: the folder of performance.md.
    """
    file = tables.results_file(docs, "curve.json")
    tables.record(found, file, docs / "performance.md", {"curve": section(found)}, BY)


def import_tensorflow() -> None:
    """Imports what hosts need, which are copies of this process."""
    from benchmarks.cluster_cost import trainings  # noqa: F401
    from benchmarks.curve import stock_layers  # noqa: F401
    from benchmarks.distributed import builders  # noqa: F401
    from twml_ops import distribute  # noqa: F401


def load(file: Path, share: float) -> Results:
    """The earlier results, which must be of the same share.

    Args:
        file: the file of the results.
        share: the share of a core, for each host.

    Raises:
        SystemExit: they are of another share.
    """
    if not file.exists():
        return {"share": share, "cells": {}, "learned": {}, "failed": {}}
    found: Results = json.loads(file.read_text())
    if found["share"] != share:
        sys.exit(
            f"benchmarks.curve: {file.name} has results for --share {found['share']}, got {share}"
        )
    return found


if __name__ == "__main__":
    typer.run(main)
