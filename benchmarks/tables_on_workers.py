"""The bytes of a step with tables on workers and on servers of their own, beside the prediction.

    sudo python -m benchmarks.tables_on_workers

Each server and each worker has a host of its own, or each worker runs a server in its process. The
counters of the network interfaces say how many bytes all hosts send.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine, tables
from benchmarks.curve import cells
from benchmarks.curve.cells import Cell
from benchmarks.curve.jobs import AXES
from benchmarks.curve.measure import Limits, fetch, processes, wait
from benchmarks.distributed.grid import MB, WORKLOAD, signals_as_exits
from benchmarks.distributed.network import Network, unavailable
from twml_ops.planning import ClusterResources, Job, Prediction, Table, predict

WORKERS = (2, 4)
START_SECONDS, ANSWER_SECONDS, END_SECONDS = 300.0, 60.0, 240.0
POLL_SECONDS = 0.5
BATCHES = 8  # of a worker, which repeats them
BY = "benchmarks/tables_on_workers.py"


def main(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each row of the table.")] = 64,
    docs: Annotated[Path, typer.Option(help="Folder of parameter_server.md.")] = Path("docs"),
) -> None:
    """Measures, and writes the table of the page."""
    reason = unavailable()
    if reason is not None:
        raise SystemExit(f"benchmarks.tables_on_workers: {reason}")
    about = machine.describe(machine.command_line("benchmarks.tables_on_workers"))
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""})
    import tensorflow  # noqa: F401 - the processes of the hosts are copies of this one

    with signals_as_exits():
        result = {"about": about, "cells": [measured(cell, steps) for cell in wanted()]}
    file = tables.results_file(docs, "tables_on_workers.json")
    sections = {"tables_on_workers": section(result)}
    tables.record(result, file, docs / "parameter_server.md", sections, BY)
    print(sections["tables_on_workers"])


def wanted() -> list[Cell]:
    """The same cluster with each layout, by row and by column."""
    return [
        Cell("reference", cells.SYNCHRONOUS, n, n, axis=axis, inside=inside)
        for n in WORKERS
        for axis in cells.AXES
        for inside in (False, True)
    ]


def measured(cell: Cell, steps: int) -> dict[str, Any]:
    """Measures the bytes of a step.

    Args:
        cell: the cell, whose workers are synchronous.
        steps: the number of steps to measure, after a call of each worker.

    Returns:
        `workers`, `axis` and `inside` of the cell; the bytes that `all` hosts and the `busiest` one
        send in a step, with headers, and those that are `predicted` for all hosts.
    """
    batches = cell.workers * (cell.steps_per_execution + steps)
    limits = Limits(1.0)
    with Network(cell.hosts) as network, processes(network, cell, limits, batches) as hosts:
        workers = hosts[-cell.workers :]
        calls: list[Any] = [[] for _ in workers]
        wait(workers, calls, [1] * len(workers), START_SECONDS)
        before, deadline = network.sent(), time.monotonic() + END_SECONDS
        for worker in workers:
            worker.request({"do": "go_on"}, ANSWER_SECONDS)
        while not fetch(workers, calls):
            if time.monotonic() > deadline:
                raise SystemExit(f"{cell.name}: the steps have not ended in {END_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        after = network.sent()
    sent = [(after[host] - before[host]) / steps for host in cell.hosts]
    found = {"workers": cell.workers, "axis": cell.axis, "inside": cell.inside}
    found |= {"all": sum(sent), "busiest": max(sent), "predicted": predicted(cell).wire_bytes()}
    print(found, flush=True)
    return found


def predicted(cell: Cell) -> Prediction:
    """The prediction of a cell.

    Args:
        cell: a cell with the table of the benchmarks of several hosts.
    """
    each = [b for worker in range(cell.workers) for b in WORKLOAD.batches(BATCHES, 1 + worker)]
    unique = float(np.mean([batch.unique for batch in each]))
    table = Table(WORKLOAD.input_dim, WORKLOAD.units, WORKLOAD.row_length, unique)
    cluster = ClusterResources(MB, cell.servers, cell.workers, servers_in_workers=cell.inside)
    return predict(AXES[cell.axis], Job((table,), WORKLOAD.batch_size), cluster)


def section(result: dict[str, Any]) -> str:
    """The table of the page."""
    found, rows = result["cells"], []
    for cell in found:
        same = (c for c in found if (c["workers"], c["axis"]) == (cell["workers"], cell["axis"]))
        apart = next(c for c in same if not c["inside"])["all"]
        n = cell["workers"]
        rows.append(
            [
                f"{n} hosts: tables on the workers"
                if cell["inside"]
                else f"{2 * n} hosts: {n} servers, {n} workers",
                cell["axis"],
                *(f"{cell[name] / 1e3:,.0f}" for name in ("busiest", "all", "predicted")),
                f"{cell['all'] / cell['predicted'] - 1:+.1%}".replace("%", " %"),
                f"{cell['all'] / apart:.2f}",
            ]
        )
    header = ["hosts", "axis", "KB of the busiest host", "KB together", "predicted"]
    header += ["difference", "of servers on other hosts"]
    return f"{tables.machine(result['about'])}\n\n{tables.markdown(header, rows)}"


if __name__ == "__main__":
    typer.run(main)
