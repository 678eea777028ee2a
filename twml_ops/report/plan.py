"""What `twml-ops plan` has found, its table, and its plot of steps/s and bytes by strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.planning import (
    STRATEGIES,
    Choice,
    ClusterResources,
    Compute,
    CpuCosts,
    Job,
    Prediction,
    predict,
)
from twml_ops.planning.recommend import MAX_HOSTS


@dataclass(frozen=True)
class Plan:
    """The predictions for a job and the recommendation.

    Attributes:
        job: the job, with the recommended batch size.
        cluster: the cluster.
        compute: measured times and costs.
        predictions: the prediction for each strategy.
        choice: the recommended axis and servers.
        examples_per_second_by_batch: the speed of the best choice for each batch size.
        hosts_to_break_even: number of hosts from which a cluster is faster than one host; None: no
            number is, or the speed of one host is not known.
    """

    job: Job
    cluster: ClusterResources
    compute: Compute
    predictions: list[Prediction]
    choice: Choice
    examples_per_second_by_batch: dict[int, float]
    hosts_to_break_even: int | None


LINKS = ("worker → server", "server → worker", "worker → worker")


def print_plan(console: Console, plan: Plan, picture: Path | None) -> None:
    """Prints the job and the cluster, a table with one strategy per row, and the recommendation.

    Args:
        console: where to print.
        plan: what was found.
        picture: path of the plot; None: there is none.
    """
    job, cluster, found = plan.job, plan.cluster, plan.predictions
    sizes = ", ".join(f"{t.input_dim:,} × {t.units}" for t in job.tables)
    ids = sum(t.ids(job.batch) for t in job.tables)
    rows = sum(t.rows(job.batch) for t in job.tables)
    console.print(
        f"[bold]job    [/]  tables {sizes} ({job.table_bytes / 1e6:,.0f} MB); a batch of "
        f"{job.batch:,} examples has {ids:,.0f} entries in {rows:,.0f} rows",
        soft_wrap=True,
    )
    place = " of hybrids in their processes" if cluster.servers_in_workers else ""
    console.print(
        f"[bold]cluster[/]  {_count(cluster.workers, 'worker')}, "
        f"{_count(cluster.servers, 'server')}{place}, {cluster.egress / 1e6:,.0f} MB/s from each",
        soft_wrap=True,
    )
    costs = plan.compute.costs
    if costs is not None:
        _print_costs(console, costs)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("MB per step on one link", style="bold")
    for link in LINKS:
        table.add_column(link, justify="right")
    for process in ("worker", "server") if costs else ():
        table.add_column(f"CPU ms, {process}", justify="right")
    table.add_column("wire, ms", justify="right")
    table.add_column("steps/s", justify="right", style="cyan")
    table.add_column("× standard", justify="right")
    standard = next(p for p in found if p.strategy.startswith("standard"))
    for p in found:
        links = [f"{p.links[link] / 1e6:,.3f}" if link in p.links else "–" for link in LINKS]
        table.add_row(
            p.strategy,
            *links,
            *[f"{1e3 * t:,.2f}" if t else "–" for t in (p.worker_cpu, p.server_cpu) if costs],
            f"{1e3 * p.wire_seconds:,.2f}" if p.wire_seconds else "–",
            _rate(p.steps_per_second),
            _times(p.steps_per_second / standard.steps_per_second),
        )
    console.print(table)
    if len(plan.examples_per_second_by_batch) > 1:
        rates = ", ".join(
            f"{batch:,}: {_rate(rate)}" for batch, rate in plan.examples_per_second_by_batch.items()
        )
        console.print(f"[bold]examples/s by batch size[/]  {rates}", soft_wrap=True)
    best = plan.choice.prediction
    place = " in the processes of workers" if best.servers_in_workers else ""
    console.print(
        f"[green]choice[/]  {best.strategy} on {_count(best.servers, 'server')}{place}, batch size "
        f"{job.batch:,}: {_rate(best.steps_per_second)} steps/s; {escape(plan.choice.reason)}",
        soft_wrap=True,
    )
    if plan.choice.alone.seconds:
        _print_comparison(console, plan)
    if not all(p.seconds for p in found):
        console.print(
            "[dim]The speed of a strategy without traffic depends on --sparse-ms and --dense-ms, "
            "which are 0[/]",
            soft_wrap=True,
        )
    if picture is not None:
        console.print(f"the plot is in {escape(str(picture))}", soft_wrap=True)


def _print_costs(console: Console, costs: CpuCosts) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("CPU µs of one", style="bold")
    by_process = costs.to_json()
    parts = list(by_process["worker"])
    for part in parts:
        table.add_column(part, justify="right")
    for process, micros in by_process.items():
        table.add_row(process, *(f"{micros[p]:.3g}" if micros[p] else "–" for p in parts))
    console.print(table)


def _print_comparison(console: Console, plan: Plan) -> None:
    """Says whether one machine is faster, and how many hosts a cluster needs to be faster."""
    rate, hosts = _rate(plan.choice.alone.steps_per_second), plan.hosts_to_break_even
    if plan.choice.is_slower_than_alone:
        needed = (
            f"no cluster of up to {MAX_HOSTS} hosts is faster"
            if hosts is None
            else f"a cluster is faster from {_count(hosts, 'host')} on"
        )
        console.print(
            f"[yellow]a single machine is faster:[/] {rate} steps/s, if its memory suffices; "
            f"{needed}",
            soft_wrap=True,
        )
    elif hosts is not None:
        console.print(
            f"a single machine makes {rate} steps/s; a cluster is faster from "
            f"{_count(hosts, 'host')} on",
            soft_wrap=True,
        )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _rate(steps: float) -> str:
    return "–" if math.isinf(steps) else f"{steps:,.0f}" if steps >= 100 else f"{steps:.3g}"


def _times(ratio: float) -> str:
    return "–" if math.isinf(ratio) else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


MARGIN = 10  # the axis ranges from a tenth of the given egress to ten times


def check_plot_path(path: Path | None) -> None:
    """Checks the path of the plot.

    Raises:
        ValueError: `path` does not end in .png.
    """
    if path is not None and path.suffix.lower() != ".png":
        raise ValueError(f"--out must end in .png, got {path}")


def draw_plan(
    job: Job, cluster: ClusterResources, compute: Compute, overlap: bool, path: Path
) -> None:
    """Draws the plot and writes it as a PNG.

    Args:
        job: the job.
        cluster: the cluster.
        compute: measured times.
        overlap: the hybrid strategies overlap a batch with the next one.
        path: file to write, which `check_plot_path` accepts.
    """
    figure = Figure(figsize=(10.4, 4), layout="constrained")
    rates, amounts = figure.subplots(1, 2, width_ratios=[3, 2])
    axis = cluster.egress * np.geomspace(1 / MARGIN, MARGIN, 41)
    here: list[Prediction] = []
    for strategy in STRATEGIES:
        predictions = [
            predict(strategy, job, replace(cluster, egress=float(e)), compute, overlap=overlap)
            for e in axis
        ]
        here.append(predictions[len(predictions) // 2])
        if predictions[0].seconds:
            dashes = "--" if strategy.endswith("column") else "-"
            rates.plot(
                axis / 1e6, [p.steps_per_second for p in predictions], dashes, lw=2, label=strategy
            )
        else:  # an empty line keeps the colours of both panels in step
            rates.plot([], [], lw=2)
    rates.axvline(cluster.egress / 1e6, color="#6b7280", lw=1, ls=(0, (4, 3)))
    rates.set(xscale="log", yscale="log", xlabel="egress of a host, MB/s", ylabel="steps/s")
    rates.legend(fontsize=8, frameon=False)
    sent = [max(p.sent.values()) / 1e6 for p in here]
    colors = [f"C{i}" for i in range(len(here))]
    amounts.barh([p.strategy for p in here], sent, color=colors)
    amounts.set(xscale="symlog", xlabel="MB per step, sent by the busiest host")
    amounts.invert_yaxis()
    for panel in (rates, amounts):
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
