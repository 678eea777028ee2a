"""`twml-ops plan`: predicts the traffic and the speed of distributed training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twml_ops.cli.errors import UserError
from twml_ops.cli.render import plan_plot, plan_table
from twml_ops.cli.render.json_output import print_json
from twml_ops.cli.results.plan import Plan
from twml_ops.cli.runs.folder import optional_file
from twml_ops.planning import (
    STRATEGIES,
    ClusterResources,
    Compute,
    CpuCosts,
    Job,
    Prediction,
    Table,
    hosts_to_break_even,
    predict,
    recommend,
    servers_needed,
)

MODES = ("sync", "async")


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """What the user chose; see `twml-ops plan --help`.

    Attributes:
        tables: ROWSxUNITS of each table.
        batches: examples in one worker's batch; the best of several is recommended.
        entries: entries per example, one number or one per table.
        unique: distinct ids of a batch, one number or one per table; None: as if ids were uniform.
        every: batches between two exchanges of peers.
        exchanged: distinct ids of these batches, one number or one per table; None: as many as the
            other options allow.
        egress: MB/s that a host can send.
        servers: number of parameter servers.
        workers: number of workers.
        mode: "sync" or "async": whether the workers of a hybrid wait for each other.
        steps_per_execution: steps of a call of TensorFlow.
        cores: CPU cores of a host.
        values: entries have values.
        deduplicate: a hybrid sends repeated ids once.
        half: activations are sent in half precision.
        overlap: a hybrid overlaps a batch with the next one.
        dense: number of weights behind the tables.
        slots: optimizer slots per weight.
        server_memory: GB of a server for tables and slots; None: unlimited.
        sparse_ms: milliseconds of the sparse layers in a step on one core; with costs, those that
            they take longer than the costs predict.
        dense_ms: the same of the rest of a step.
        latency_ms: milliseconds of an empty request and its response.
        transport: MB/s that the software of a host can send; None: unlimited.
    """

    tables: list[str]
    batches: list[int]
    entries: list[float]
    unique: list[float] | None
    every: int
    exchanged: list[float] | None
    egress: float
    servers: int
    workers: int
    mode: str
    steps_per_execution: int
    cores: float
    values: bool
    deduplicate: bool
    half: bool
    overlap: bool
    dense: int
    slots: int
    server_memory: float | None
    sparse_ms: float
    dense_ms: float
    latency_ms: float
    transport: float | None


def plan_job(
    options: PlanOptions,
    get_costs: Callable[[], CpuCosts | None],
    out: Path | None,
    as_json: bool,
    overwrite: bool = False,
) -> None:
    """Predicts every strategy, and prints the predictions and the recommended one.

    Args:
        options: the job and the cluster.
        get_costs: returns the costs of CPU time, or None; called once the options are valid.
        out: PNG to draw into; None: no plot.
        as_json: print JSON instead of a table.
        overwrite: replace an existing file.

    Raises:
        UserError: an option has the wrong number of values or another value, or `out` does not end
            in .png or cannot be written.
        ValueError: a number is out of range.
    """
    if options.mode not in MODES:
        raise UserError(f"--mode: expected {' or '.join(MODES)}, got {options.mode!r}")
    jobs = [
        Job(
            _tables(options, batch),
            batch,
            values=options.values,
            deduplicate=options.deduplicate,
            dense=options.dense,
            activation_bytes=2 if options.half else 4,
            slots=options.slots,
            every=options.every,
        )
        for batch in options.batches
    ]
    cluster = ClusterResources(
        1e6 * options.egress,
        options.servers,
        options.workers,
        options.cores,
        asynchronous=options.mode == "async",
        steps_per_call=options.steps_per_execution,
    )
    compute = Compute(
        options.sparse_ms / 1e3,
        options.dense_ms / 1e3,
        options.latency_ms / 1e3,
        None if options.transport is None else 1e6 * options.transport,
    )
    memory = None if options.server_memory is None else 1e9 * options.server_memory
    overlap = options.overlap
    servers_needed(jobs[0], memory, options.servers)
    plan_plot.check_path(out)
    with optional_file(out, overwrite) as file:
        compute = dataclasses.replace(compute, costs=get_costs())
        plan = _plan(jobs, cluster, compute, memory, overlap)
        if file is not None:
            plan_plot.draw(plan.job, cluster, compute, overlap, file)
    if as_json:
        print_json(_to_json(plan))
    else:
        plan_table.print_plan(plan, out)


def _plan(
    jobs: Sequence[Job],
    cluster: ClusterResources,
    compute: Compute,
    memory: float | None,
    overlap: bool,
) -> Plan:
    """The recommendation, and the predictions for the job with the recommended batch size."""
    best = recommend(jobs, cluster, compute, server_memory=memory, overlap=overlap)
    job = best.job
    return Plan(
        job,
        cluster,
        compute,
        [predict(s, job, cluster, compute, overlap=overlap) for s in STRATEGIES],
        best.choice,
        best.examples_per_second_by_batch,
        hosts_to_break_even(job, cluster, compute, server_memory=memory, overlap=overlap)
        if best.choice.alone.seconds
        else None,
    )


def _tables(options: PlanOptions, batch: int) -> tuple[Table, ...]:
    """The tables, whose distinct ids are in proportion to the batch size, up to all ids."""
    sizes = options.tables
    entries = _one_per_table("--entries", options.entries, len(sizes))
    given = {"--unique": options.unique, "--exchanged": options.exchanged}
    counts = [
        _one_per_table(name, numbers, len(sizes)) if numbers else [None] * len(sizes)
        for name, numbers in given.items()
    ]
    tables = [Table.parse(*each) for each in zip(sizes, entries, *counts, strict=True)]
    more = batch / options.batches[0]

    def scaled(number: float | None, table: Table) -> float | None:
        return number and min(number * more, table.input_dim)

    return tuple(
        dataclasses.replace(t, unique=scaled(t.unique, t), exchanged=scaled(t.exchanged, t))
        for t in tables
    )


def _one_per_table(name: str, values: list[float], count: int) -> list[float]:
    if len(values) not in (1, count):
        raise UserError(f"{name} must be given once or once a table ({count}), got {len(values)}")
    return values * count if len(values) == 1 else values


def _to_json(plan: Plan) -> dict[str, Any]:
    best = plan.choice.prediction
    compute = asdict(plan.compute)
    compute["costs"] = plan.compute.costs and plan.compute.costs.to_json()
    return {
        "job": asdict(plan.job),
        "cluster": asdict(plan.cluster),
        "compute": compute,
        "strategies": {p.strategy: _prediction_to_json(p) for p in plan.predictions},
        "choice": {
            "strategy": best.strategy,
            "batch": plan.job.batch,
            "reason": plan.choice.reason,
            "is_slower_than_alone": plan.choice.is_slower_than_alone,
            "hosts_to_break_even": plan.hosts_to_break_even,
            "examples_per_second_by_batch": plan.examples_per_second_by_batch,
            **_prediction_to_json(best),
        },
    }


def _prediction_to_json(p: Prediction) -> dict[str, Any]:
    """The numbers of a prediction. Steps/s are None if nothing in the model takes time."""
    return {
        "servers": p.servers,
        "workers": p.workers,
        "servers_in_workers": p.servers_in_workers,
        "bytes_per_link": p.links,
        "bytes_sent_per_host": p.sent,
        "wire_seconds": p.wire_seconds,
        "worker_cpu_seconds": p.worker_cpu,
        "server_cpu_seconds": p.server_cpu,
        "steps_per_second": p.steps_per_second if p.seconds else None,
    }
