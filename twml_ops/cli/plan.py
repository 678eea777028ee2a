"""`twml-ops plan`: predicts the traffic and the speed of distributed training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twml_ops.cli.options import Debug, HelpAll, advanced
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    from twml_ops.planning import ClusterResources, Compute, CpuCosts, Job, Prediction, Table
    from twml_ops.report.plan import Plan

_step = advanced("Details of a step")
_measured = advanced("Measured times")


def plan(
    table: Annotated[
        list[str] | None,
        typer.Option(help="ROWSxUNITS of a sparse table, such as 2^19x128. Repeat for each table."),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --table: JSON file that lists tables. For each, the way to divide it "
            "over the servers is planned, and the servers.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --tables: folder of a finished run, whose model and data have the "
            "tables. It needs TensorFlow.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="With --run: examples with the entries of a batch. [default: the evaluation data]"
        ),
    ] = None,
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
        _step(
            help="Distinct ids of these batches: one number, or one per table. "
            "[default: --every times --unique, or as for uniform ids]"
        ),
    ] = None,
    egress: Annotated[float, typer.Option(help="MB/s that a host can send.")] = 150.0,
    servers: Annotated[
        int | None,
        typer.Option(
            help="Number of parameter servers. [default: 2, or with --servers-in-workers one for "
            "each worker]"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 1,
    servers_in_workers: Annotated[
        bool,
        typer.Option(
            "--servers-in-workers",
            help="The servers are on the hosts of the workers, as with this option of launch.",
        ),
    ] = False,
    mode: Annotated[
        str,
        typer.Option(help="sync or async: whether the workers of the hybrid strategies wait."),
    ] = "sync",
    steps_per_execution: Annotated[
        int,
        _step(
            min=1,
            help="Steps of a call of TensorFlow. In all of them but one a worker packs a batch "
            "while the servers work.",
        ),
    ] = 4,
    values: Annotated[bool, _step(help="Entries have values. Otherwise all values are 1.")] = False,
    deduplicate: Annotated[
        bool, _step(help="The hybrid strategies send repeated ids once.")
    ] = True,
    wire_dtype: Annotated[
        str,
        _step(help="As of train: the hybrid strategies send products in this type."),
    ] = "float32",
    gradient_wire_dtype: Annotated[
        str | None,
        _step(help="As of train: the type of their gradients. [default: as --wire-dtype]"),
    ] = None,
    overlap: Annotated[
        bool, _step(help="The hybrid strategies overlap a batch with the next one.")
    ] = False,
    dense: Annotated[int, typer.Option(help="Number of weights behind the tables.")] = 0,
    slots: Annotated[
        int, typer.Option(help="Optimizer slots per weight: SGD 0, Adagrad 1, Adam 2.")
    ] = 0,
    server_memory: Annotated[
        float | None,
        typer.Option(
            help="GB of a server for tables and slots; of a host with --servers-in-workers."
        ),
    ] = None,
    sparse_ms: Annotated[
        float,
        _measured(
            help="Measured time of the sparse layers in a step on one core. With --measure or "
            "--costs: what they take longer than these predict."
        ),
    ] = 0.0,
    dense_ms: Annotated[float, _measured(help="The same of the rest of a step.")] = 0.0,
    latency_ms: Annotated[
        float, _measured(help="Measured time of an empty request and its response.")
    ] = 0.0,
    transport: Annotated[
        float | None, _measured(help="Measured MB/s that the software of a host can send.")
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
    out: Annotated[
        Path | None,
        typer.Option(
            help="PNG with plots of steps/s and bytes; with --tables or --run of the servers."
        ),
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="With --tables or --run: table, row, column, replicated or column-row. Repeat it "
            "to allow several. [default: all]"
        ),
    ] = None,
    out_plan: Annotated[
        Path | None,
        typer.Option(
            help="With --tables or --run: JSON file to write the plan to.", show_default=False
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files --out, --out-plan, --out-costs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
    help_all: HelpAll = False,
) -> None:
    """Predicts bytes and steps/s of each way to distribute a job, and recommends one.

    Without --measure, --costs, --sparse-ms, --dense-ms and --latency-ms the network is the only
    limit. docs/plan.md explains the formulas.
    """
    check_cost_options(measure, costs, out_costs)

    one_by_one = "--tables" if run is None else "--run"
    if data is not None and run is None:
        raise UserError("--data needs --run")
    if run is not None and tables is not None:
        raise UserError("--run and --tables: give one of them")
    if tables is not None or run is not None:
        of_tables = {"--table": table, "--entries": entries, "--unique": unique}
        refused = [n for n, v in {**of_tables, "--exchanged": exchanged}.items() if v]
        if refused:
            what = "file" if run is None else "run"
            raise UserError(f"{one_by_one}: {', '.join(refused)}: the {what} has these")
        if len(batch or ()) > 1:
            raise UserError(f"{one_by_one}: --batch must be given once, got {len(batch or ())}")
    elif not table:
        raise UserError("--table, --tables or --run must be given")
    elif out_plan is not None or way:
        raise UserError("--out-plan and --way need --tables or --run")
    options = PlanOptions(
        tables=table or [],
        batches=batch or [512],
        entries=entries or [200.0],
        unique=unique,
        every=every,
        exchanged=exchanged,
        egress=egress,
        servers=(workers if servers_in_workers else 2) if servers is None else servers,
        workers=workers,
        servers_in_workers=servers_in_workers,
        mode=mode,
        steps_per_execution=steps_per_execution,
        cores=cores,
        values=values,
        deduplicate=deduplicate,
        wire_dtype=wire_dtype,
        gradient_wire_dtype=gradient_wire_dtype,
        overlap=overlap,
        dense=dense,
        slots=slots,
        server_memory=server_memory,
        sparse_ms=sparse_ms,
        dense_ms=dense_ms,
        latency_ms=latency_ms,
        transport=transport,
    )
    get_costs = costs_by(measure, costs, out_costs, slots, steps_per_execution, overwrite)
    if tables is None and run is None:
        plan_job(options, get_costs, out, as_json, overwrite)
        return
    from twml_ops.cli.plan_tables import plan_tables, read_tables

    cluster = _cluster(options)
    if run is not None:
        from twml_ops.training.run_tables import tables_of_run

        found = tables_of_run(run, data, options.batches[0])
    else:
        assert tables is not None
        found = read_tables(tables)
    plan_tables(
        found,
        lambda found: _job(options, found, options.batches[0]),
        cluster,
        None if server_memory is None else 1e9 * server_memory,
        way,
        get_costs,
        out,
        out_plan,
        as_json,
        overwrite,
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
        servers_in_workers: the servers are on the hosts of the workers.
        mode: "sync" or "async": whether the workers of a hybrid wait for each other.
        steps_per_execution: steps of a call of TensorFlow.
        cores: CPU cores of a host.
        values: entries have values.
        deduplicate: a hybrid sends repeated ids once.
        wire_dtype: type in which a hybrid sends products.
        gradient_wire_dtype: type in which it sends their gradients; None: `wire_dtype`.
        overlap: a hybrid overlaps a batch with the next one.
        dense: number of weights behind the tables.
        slots: optimizer slots per weight.
        server_memory: GB of a server for tables and slots; None: unlimited.
        sparse_ms: milliseconds of the sparse layers in a step on one core; with costs, the
            milliseconds beyond what the costs predict.
        dense_ms: the same for the rest of a step.
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
    servers_in_workers: bool
    mode: str
    steps_per_execution: int
    cores: float
    values: bool
    deduplicate: bool
    wire_dtype: str
    gradient_wire_dtype: str | None
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
    from twml_ops.cli.console import make_console, print_json
    from twml_ops.planning import Compute, servers_needed
    from twml_ops.report.plan import check_plot_path, draw_plan, print_plan
    from twml_ops.training.run_folder import optional_file

    cluster = _cluster(options)
    jobs = [_job(options, _tables(options, batch), batch) for batch in options.batches]
    compute = Compute(
        options.sparse_ms / 1e3,
        options.dense_ms / 1e3,
        options.latency_ms / 1e3,
        None if options.transport is None else 1e6 * options.transport,
    )
    memory = None if options.server_memory is None else 1e9 * options.server_memory
    overlap = options.overlap
    servers_needed(jobs[0], memory, options.servers)
    check_plot_path(out)
    with optional_file(out, overwrite) as file:
        compute = dataclasses.replace(compute, costs=get_costs())
        plan = _plan(jobs, cluster, compute, memory, overlap)
        if file is not None:
            draw_plan(plan.job, cluster, compute, overlap, file)
    if as_json:
        print_json(_to_json(plan))
    else:
        print_plan(make_console(), plan, out)


def _job(options: PlanOptions, tables: tuple[Table, ...], batch: int) -> Job:
    from twml_ops.planning import Job

    return Job(
        tables,
        batch,
        values=options.values,
        deduplicate=options.deduplicate,
        dense=options.dense,
        activation_bytes=_bytes_of_number("--wire-dtype", options.wire_dtype),
        gradient_bytes=_bytes_of_number(
            "--gradient-wire-dtype", options.gradient_wire_dtype or options.wire_dtype
        ),
        slots=options.slots,
        every=options.every,
    )


def _bytes_of_number(option: str, dtype: str) -> int:
    from twml_ops.planning import BYTES_OF_NUMBER

    if dtype not in BYTES_OF_NUMBER:
        raise UserError(f"{option} must be one of {', '.join(BYTES_OF_NUMBER)}; got {dtype!r}")
    return BYTES_OF_NUMBER[dtype]


def _cluster(options: PlanOptions) -> ClusterResources:
    from twml_ops.planning import ClusterResources

    if options.mode not in MODES:
        raise UserError(f"--mode: expected {' or '.join(MODES)}, got {options.mode!r}")
    if options.servers_in_workers and options.servers > options.workers:
        raise UserError(
            f"--servers-in-workers: each host has one server, so --servers must be at most the "
            f"{options.workers} of --workers, got {options.servers}"
        )
    return ClusterResources(
        1e6 * options.egress,
        options.servers,
        options.workers,
        options.cores,
        servers_in_workers=options.servers_in_workers,
        asynchronous=options.mode == "async",
        steps_per_call=options.steps_per_execution,
    )


def _plan(
    jobs: Sequence[Job],
    cluster: ClusterResources,
    compute: Compute,
    memory: float | None,
    overlap: bool,
) -> Plan:
    """The recommendation, and the predictions for the job with the recommended batch size."""
    from twml_ops.planning import STRATEGIES, hosts_to_break_even, predict, recommend
    from twml_ops.report.plan import Plan

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
    from twml_ops.planning import Table

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


def check_cost_options(measure: bool, costs: Path | None, out_costs: Path | None) -> None:
    """Checks that the options fit together.

    Raises:
        UserError: costs are both measured and read, or written but not measured.
    """
    if measure and costs is not None:
        raise UserError("--measure and --costs: give one of them")
    if out_costs is not None and not measure:
        raise UserError("--out-costs needs --measure")


def costs_by(
    measure: bool,
    costs: Path | None,
    out_costs: Path | None,
    slots: int,
    steps_per_execution: int,
    overwrite: bool = False,
) -> Callable[[], CpuCosts | None]:
    """A function that returns the costs, or None if the user gave none.

    Args:
        measure: measure them.
        costs: file to read them from.
        out_costs: file to write measured costs to.
        slots: optimizer slots per weight of the measured trainings.
        steps_per_execution: their steps of a call.
        overwrite: replace an existing file.
    """
    from twml_ops.training.run_folder import optional_file, write_json

    def get() -> CpuCosts | None:
        if costs is not None:
            return read_costs(costs)
        if not measure:
            return None
        with optional_file(out_costs, overwrite) as file:
            found = _measure_costs(slots, steps_per_execution)
            if file is not None:
                about = {"slots": slots, "steps_per_execution": steps_per_execution}
                write_json(file, {**about, "microseconds": found.to_json()})
        return found

    return get


def read_costs(path: Path) -> CpuCosts:
    """Reads costs that `--out-costs` has written.

    Raises:
        UserError: the file cannot be read, or has another content.
    """
    from twml_ops.planning import CpuCosts

    try:
        content = json.loads(path.read_text())
        return CpuCosts.from_json(content["microseconds"])
    except OSError as e:
        raise UserError(f"--costs: {path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise UserError(f"--costs: {path} is not a file of --out-costs: {e}") from e


def _measure_costs(slots: int, steps_per_execution: int) -> CpuCosts:
    from twml_ops.cli.console import make_console

    try:
        from twml_ops.distribute.measure_costs import MeasurementError, measure_costs
    except ImportError as e:
        raise UserError(f"--measure needs TensorFlow: {e}") from e
    console = make_console()
    try:
        with console.status("measuring CPU time") as status:

            def show(name: str) -> None:
                status.update(f"measuring CPU time: {name}")

            return measure_costs(slots, steps_per_execution, show=show)[0]
    except MeasurementError as e:
        raise UserError(f"--measure: {e}") from e
