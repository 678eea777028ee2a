"""`twml-ops plan`: what distributed training sends and how fast it is, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twml_ops.cli.commands.options import Debug

if TYPE_CHECKING:
    from twml_ops.planning import Choice, Cluster, Compute, Job, Prediction, Table


def plan(
    table: Annotated[
        list[str],
        typer.Option(help="ROWSxUNITS of a sparse table, such as 2^19x128; once for each table."),
    ],
    batch: Annotated[int, typer.Option(help="Examples in one worker's batch.")] = 512,
    entries: Annotated[
        list[float] | None,
        typer.Option(help="Entries of an example: one figure, or one a table. [default: 200]"),
    ] = None,
    unique: Annotated[
        list[float] | None,
        typer.Option(
            help="Distinct ids of a batch: one figure, or one a table. [default: as if uniform]"
        ),
    ] = None,
    egress: Annotated[float, typer.Option(help="MB/s that a host can send.")] = 150.0,
    servers: Annotated[int, typer.Option(help="Parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(help="Workers.")] = 1,
    values: Annotated[bool, typer.Option(help="Entries have values; otherwise all are 1.")] = False,
    deduplicate: Annotated[bool, typer.Option(help="A hybrid sends repeated ids once.")] = True,
    half: Annotated[bool, typer.Option(help="Activations travel in half precision.")] = False,
    overlap: Annotated[
        bool, typer.Option(help="A hybrid overlaps a batch with the next one.")
    ] = False,
    dense: Annotated[int, typer.Option(help="Weights behind the tables.")] = 0,
    slots: Annotated[
        int, typer.Option(help="Optimizer slots a weight: SGD 0, Adagrad 1, Adam 2.")
    ] = 0,
    server_memory: Annotated[
        float | None, typer.Option(help="GB that a server has for tables and slots.")
    ] = None,
    sparse_ms: Annotated[
        float, typer.Option(help="Measured: sparse layers' part of a step on one host.")
    ] = 0.0,
    dense_ms: Annotated[float, typer.Option(help="Measured: the rest of a step.")] = 0.0,
    latency_ms: Annotated[
        float, typer.Option(help="Measured: an empty request and its answer.")
    ] = 0.0,
    transport: Annotated[
        float | None, typer.Option(help="Measured: MB/s that a host's software can send.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw steps/s and bytes into this PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Predicts bytes and steps/s of each way to distribute, and picks a partition.

    Without --sparse-ms, --dense-ms and --latency-ms the wire is the only limit. docs/plan.md
    explains the formula.
    """
    from twml_ops import planning
    from twml_ops.cli.render import plan_plot, plan_table

    job = planning.Job(
        _tables(table, entries or [200.0], unique),
        batch,
        values=values,
        deduplicate=deduplicate,
        dense=dense,
        activation_bytes=2 if half else 4,
        slots=slots,
    )
    cluster = planning.Cluster(1e6 * egress, servers, workers)
    software = None if transport is None else 1e6 * transport
    compute = planning.Compute(sparse_ms / 1e3, dense_ms / 1e3, latency_ms / 1e3, software)
    found = [
        planning.predict(s, job, cluster, compute, overlap=overlap) for s in planning.STRATEGIES
    ]
    memory = None if server_memory is None else 1e9 * server_memory
    choice = planning.choose(job, cluster, compute, server_memory=memory, overlap=overlap)
    if out is not None:
        plan_plot.draw(job, cluster, compute, overlap, out)
    if as_json:
        print(json.dumps(_as_data(job, cluster, compute, found, choice), indent=2))
    else:
        plan_table.show(job, cluster, found, choice, out)


def _tables(
    sizes: list[str], entries: list[float], unique: list[float] | None
) -> tuple[Table, ...]:
    from twml_ops.planning import Table

    of_entries = _each("--entries", entries, len(sizes))
    of_unique = _each("--unique", unique, len(sizes)) if unique else [None] * len(sizes)
    return tuple(Table.parse(s, e, u) for s, e, u in zip(sizes, of_entries, of_unique, strict=True))


def _each(name: str, values: list[float], count: int) -> list[float]:
    if len(values) not in (1, count):
        raise ValueError(f"{name} must be given once or once a table ({count}), got {len(values)}")
    return values * count if len(values) == 1 else values


def _as_data(
    job: Job, cluster: Cluster, compute: Compute, found: list[Prediction], choice: Choice
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "job": asdict(job),
        "cluster": asdict(cluster),
        "compute": asdict(compute),
        "strategies": {p.strategy: _prediction(p) for p in found},
        "choice": {"strategy": choice.prediction.strategy, "reason": choice.reason}
        | _prediction(choice.prediction),
    }


def _prediction(p: Prediction) -> dict[str, Any]:
    """Numbers only; null where nothing is known to take time."""
    return {
        "servers": p.servers,
        "workers": p.workers,
        "bytes_per_link": p.links,
        "bytes_sent_per_host": p.sent,
        "wire_seconds": p.wire_seconds,
        "steps_per_second": p.steps_per_second if p.seconds else None,
    }
