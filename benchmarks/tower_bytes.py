"""The bytes of a step with towers of fields on parameter servers, beside the prediction.

    sudo python -m benchmarks.tower_bytes

One worker and two or four servers on hosts of their own train a model of fields whose tables are
divided into four towers. The servers send the vectors of all fields, or the outputs of the towers.
The counters of the network interfaces say how many bytes all hosts send.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine, tables
from benchmarks.distributed import towers
from benchmarks.distributed.grid import BY_ROW, MB, signals_as_exits
from benchmarks.distributed.network import unavailable
from benchmarks.distributed.session import Topology, session
from benchmarks.distributed.worker import BATCHES
from benchmarks.workload import Workload
from twml_ops.planning import ClusterResources, Job, Table, predict

FIELDS = 24
WORKLOAD = Workload(input_dim=FIELDS * 2**14, units=32, batch_size=1024, row_length=FIELDS)
SERVERS = (2, 4)
BY = "benchmarks/tower_bytes.py"


def main(
    seconds: Annotated[float, typer.Option(help="Seconds for each row of the table.")] = 4.0,
    docs: Annotated[Path, typer.Option(help="Folder of plan.md.")] = Path("docs"),
) -> None:
    """Measures, and writes the table of the page."""
    reason = unavailable()
    if reason is not None:
        raise SystemExit(f"benchmarks.tower_bytes: {reason}")
    about = machine.describe(machine.command_line("benchmarks.tower_bytes"))
    with signals_as_exits():
        result = {"about": about, "cells": [c for n in SERVERS for c in measured(n, seconds)]}
    file = tables.results_file(docs, "tower_bytes.json")
    sections = {"tower_bytes": section(result)}
    tables.record(result, file, docs / "plan.md", sections, BY)
    print(sections["tower_bytes"])


def measured(servers: int, seconds: float, workload: Workload = WORKLOAD) -> list[dict[str, Any]]:
    """Measures the bytes of a step of each strategy.

    Args:
        servers: number of servers, each on a host.
        seconds: for each strategy.
        workload: sizes of the tables and the batches.

    Returns:
        For each strategy the bytes that the `worker`, the `servers` and `all` hosts send in a step,
        with headers, and `predicted`, the ones of all hosts.
    """
    found = []
    with session(Topology(servers, 1), workload.input_dim * workload.units * 4) as hosts:
        for strategy in towers.STRATEGIES:
            hosts.build(strategy, workload)
            sent = hosts.measure(seconds).sent
            hosts.drop()
            found.append(
                {
                    "servers": servers,
                    "strategy": strategy,
                    "worker_bytes": sent["wk0"],
                    "servers_bytes": sum(sent.values()) - sent["wk0"],
                    "bytes": sum(sent.values()),
                    "predicted": predicted(strategy, workload),
                }
            )
            print(found[-1], flush=True)
    return found


def predicted(strategy: str, workload: Workload) -> float:
    """Predicts the bytes that all hosts send in a step, for any number of servers.

    Args:
        strategy: one of `towers.STRATEGIES`.
        workload: sizes of the tables and the batches.
    """
    fields = workload.row_length // towers.TOWERS
    numbers = round(fields * workload.units * towers.RATIOS.get(strategy, 1))
    rows = 1 + towers.rows_of_field(workload)
    by_tower = zip(*(towers.field_ids(workload, b) for b in workload.batches(BATCHES)), strict=True)
    job = Job(
        tuple(
            Table(
                fields * rows,
                workload.units,
                fields,
                float(np.mean([_distinct(ids) for ids in of_batches])),
                outputs=numbers,
            )
            for of_batches in by_tower
        ),
        workload.batch_size,
    )
    # A server with all tables exchanges what several exchange, each of which has whole tables.
    return predict(BY_ROW, job, ClusterResources(MB, 1, 1)).wire_bytes()


def _distinct(ids: np.ndarray) -> int:
    return sum(len(np.unique(column)) for column in ids.T)


def section(result: dict[str, Any]) -> str:
    """The table of the page."""
    cells = result["cells"]
    rows = []
    for cell in cells:
        flat = next(c for c in cells if c["servers"] == cell["servers"])["bytes"]
        kb = [cell[f"{who}_bytes"] / 1e3 for who in ("worker", "servers")]
        rows.append(
            [
                f"{cell['servers']}",
                cell["strategy"],
                *(f"{n:,.0f}" for n in (*kb, cell["bytes"] / 1e3, cell["predicted"] / 1e3)),
                f"{cell['bytes'] / cell['predicted'] - 1:+.1%}".replace("%", " %"),
                f"{cell['bytes'] / flat:.2f}",
            ]
        )
    header = ["servers", "what they send", "KB of the worker", "KB of the servers"]
    header += ["KB together", "predicted", "difference", "of vectors"]
    return f"{tables.machine(result['about'])}\n\n{tables.markdown(header, rows)}"


if __name__ == "__main__":
    typer.run(main)
