"""`sudo python -m benchmarks.curve`: steps/s of a cluster against its number of hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables
from benchmarks.curve.cells import cells, default_share, learning_cells
from benchmarks.curve.measure import learn, measure
from benchmarks.curve.page import section
from benchmarks.distributed.grid import signals_as_exits
from benchmarks.distributed.network import NetworkError, unavailable
from benchmarks.distributed.process import HostError

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
    again: Annotated[bool, typer.Option(help="Measure cells that have a result as well.")] = False,
    show: Annotated[bool, typer.Option(help="List the cells and exit.")] = False,
    docs: Annotated[Path, typer.Option(help="Folder of curve.json and performance.md.")] = Path(
        "docs"
    ),
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
    file = docs / "curve.json"
    share = default_share() if share is None else share
    found = load(file, share)
    with signals_as_exits() as check_signals:
        for cell in wanted:
            check_signals()
            name = f"{losses} batches, {cell.name}" if losses else cell.name
            part = found["learned" if losses else "cells"]
            if name in part and not again:
                continue
            print(name, file=sys.stderr)
            found["failed"].pop(name, None)
            try:
                part[name] = learn(cell, share, losses) if losses else measure(cell, share, seconds)
            except (HostError, NetworkError) as e:
                found["failed"][name] = str(e).splitlines()[0]
                print(f"{name} failed: {e}", file=sys.stderr)
            found["machine"] = machine.describe(machine.command_line("benchmarks.curve"))
            tables.record(found, file, docs / "performance.md", {"curve": section(found)}, BY)


def load(file: Path, share: float) -> Results:
    """The earlier results, which must be of the same share.

    Args:
        file: of the results.
        share: of a core, for each host.

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
