"""What `twml-ops plan` prints."""

from __future__ import annotations

import math
from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from twml_ops.cli.render.terminal import make_console
from twml_ops.planning import Choice, ClusterResources, Job, Prediction

LINKS = ("worker → server", "server → worker", "worker → worker")


def print_plan(
    job: Job,
    cluster: ClusterResources,
    found: list[Prediction],
    choice: Choice,
    picture: Path | None,
) -> None:
    """Prints the job and the cluster, a table with one strategy per row, and the recommendation.

    Args:
        job: the job.
        cluster: the cluster.
        found: prediction of each strategy.
        choice: the recommended strategy.
        picture: path of the plot; None: there is none.
    """
    console = make_console()
    sizes = ", ".join(f"{t.input_dim:,} × {t.units}" for t in job.tables)
    ids = sum(t.ids(job.batch) for t in job.tables)
    rows = sum(t.rows(job.batch) for t in job.tables)
    console.print(
        f"[bold]job    [/]  tables {sizes} ({job.table_bytes / 1e6:,.0f} MB); a batch of "
        f"{job.batch:,} examples has {ids:,.0f} entries in {rows:,.0f} rows",
        soft_wrap=True,
    )
    console.print(
        f"[bold]cluster[/]  {_count(cluster.servers, 'server')}, "
        f"{_count(cluster.workers, 'worker')}, {cluster.egress / 1e6:,.0f} MB/s from each",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("MB per step on one link", style="bold")
    for link in LINKS:
        table.add_column(link, justify="right")
    table.add_column("wire, ms", justify="right")
    table.add_column("steps/s", justify="right", style="cyan")
    table.add_column("× standard", justify="right")
    standard = next(p for p in found if p.strategy.startswith("standard"))
    for p in found:
        links = [f"{p.links[link] / 1e6:,.3f}" if link in p.links else "–" for link in LINKS]
        table.add_row(
            p.strategy,
            *links,
            f"{1e3 * p.wire_seconds:,.2f}" if p.wire_seconds else "–",
            _rate(p.steps_per_second),
            _times(p.steps_per_second / standard.steps_per_second),
        )
    console.print(table)
    best = choice.prediction
    console.print(
        f"[green]choice[/]  {best.strategy} on {_count(best.servers, 'server')}: "
        f"{_rate(best.steps_per_second)} steps/s; {escape(choice.reason)}",
        soft_wrap=True,
    )
    if choice.is_slower_than_alone:
        console.print(
            "[yellow]a single machine is faster:[/] "
            f"{_rate(choice.alone.steps_per_second)} steps/s, if its memory suffices",
            soft_wrap=True,
        )
    if not all(p.seconds for p in found):
        console.print(
            "[dim]The speed of a strategy without traffic depends on --sparse-ms and --dense-ms, "
            "which are 0[/]",
            soft_wrap=True,
        )
    if picture is not None:
        console.print(f"the plot is in {escape(str(picture))}", soft_wrap=True)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _rate(steps: float) -> str:
    return "–" if math.isinf(steps) else f"{steps:,.0f}" if steps >= 100 else f"{steps:.3g}"


def _times(ratio: float) -> str:
    return "–" if math.isinf(ratio) else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
