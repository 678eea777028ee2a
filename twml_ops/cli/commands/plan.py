"""`twml-ops plan`: predicts the traffic and the speed of distributed training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def plan(
    table: Annotated[
        list[str],
        typer.Option(help="ROWSxUNITS of a sparse table, such as 2^19x128. Repeat for each table."),
    ],
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Examples in one worker's batch. Repeat it for a recommendation. [default: 512]"
        ),
    ] = None,
    entries: Annotated[
        list[float] | None,
        typer.Option(help="Entries per example: one number, or one per table. [default: 200]"),
    ] = None,
    unique: Annotated[
        list[float] | None,
        typer.Option(
            help="Distinct ids of a batch (of the first --batch): one number, or one per table. "
            "[default: as for uniform ids]"
        ),
    ] = None,
    every: Annotated[int, typer.Option(help="Batches between two exchanges of peers.")] = 16,
    exchanged: Annotated[
        list[float] | None,
        typer.Option(
            help="Distinct ids of these batches: one number, or one per table. "
            "[default: --every times --unique, or as for uniform ids]"
        ),
    ] = None,
    egress: Annotated[float, typer.Option(help="MB/s that a host can send.")] = 150.0,
    servers: Annotated[int, typer.Option(help="Number of parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 1,
    mode: Annotated[
        str,
        typer.Option(help="sync or async: whether the workers of the hybrid strategies wait."),
    ] = "sync",
    steps_per_execution: Annotated[
        int,
        typer.Option(
            min=1,
            help="Steps of a call of TensorFlow. In all of them but one a worker packs a batch "
            "while the servers work.",
        ),
    ] = 4,
    values: Annotated[
        bool, typer.Option(help="Entries have values. Otherwise all values are 1.")
    ] = False,
    deduplicate: Annotated[
        bool, typer.Option(help="The hybrid strategies send repeated ids once.")
    ] = True,
    half: Annotated[bool, typer.Option(help="Activations are sent in half precision.")] = False,
    overlap: Annotated[
        bool, typer.Option(help="The hybrid strategies overlap a batch with the next one.")
    ] = False,
    dense: Annotated[int, typer.Option(help="Number of weights behind the tables.")] = 0,
    slots: Annotated[
        int, typer.Option(help="Optimizer slots per weight: SGD 0, Adagrad 1, Adam 2.")
    ] = 0,
    server_memory: Annotated[
        float | None, typer.Option(help="GB of a server for tables and slots.")
    ] = None,
    sparse_ms: Annotated[
        float,
        typer.Option(
            help="Measured time of the sparse layers in a step on one core. With --measure or "
            "--costs: what they take longer than these predict."
        ),
    ] = 0.0,
    dense_ms: Annotated[float, typer.Option(help="The same of the rest of a step.")] = 0.0,
    latency_ms: Annotated[
        float, typer.Option(help="Measured time of an empty request and its response.")
    ] = 0.0,
    transport: Annotated[
        float | None, typer.Option(help="Measured MB/s that the software of a host can send.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure on this host what messages, entries and other parts of a step cost in "
            "CPU time, for an optimizer with --slots. It needs TensorFlow and takes about a "
            "minute.",
            rich_help_panel="CPU time",
        ),
    ] = False,
    costs: Annotated[
        Path | None,
        typer.Option(
            help="File with costs that --out-costs has written on another host.",
            show_default=False,
            rich_help_panel="CPU time",
        ),
    ] = None,
    out_costs: Annotated[
        Path | None,
        typer.Option(
            help="With --measure: JSON file to write the costs to.",
            show_default=False,
            rich_help_panel="CPU time",
        ),
    ] = None,
    cores: Annotated[
        float,
        typer.Option(
            help="CPU cores of each host; less than 1 for a share of one.",
            rich_help_panel="CPU time",
        ),
    ] = 1.0,
    out: Annotated[Path | None, typer.Option(help="PNG with plots of steps/s and bytes.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files --out and --out-costs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Predicts bytes and steps/s of each way to distribute a job, and recommends one.

    Without --measure, --costs, --sparse-ms, --dense-ms and --latency-ms the network is the only
    limit. docs/plan.md explains the formulas.
    """
    from twml_ops.cli.runs import cpu_costs
    from twml_ops.cli.runs.plan import PlanOptions, plan_job

    cpu_costs.check_options(measure, costs, out_costs)

    options = PlanOptions(
        tables=table,
        batches=batch or [512],
        entries=entries or [200.0],
        unique=unique,
        every=every,
        exchanged=exchanged,
        egress=egress,
        servers=servers,
        workers=workers,
        mode=mode,
        steps_per_execution=steps_per_execution,
        cores=cores,
        values=values,
        deduplicate=deduplicate,
        half=half,
        overlap=overlap,
        dense=dense,
        slots=slots,
        server_memory=server_memory,
        sparse_ms=sparse_ms,
        dense_ms=dense_ms,
        latency_ms=latency_ms,
        transport=transport,
    )
    get_costs = cpu_costs.source_of(
        measure, costs, out_costs, slots, steps_per_execution, overwrite
    )
    plan_job(options, get_costs, out, as_json, overwrite)
