"""What `twml-ops plan --tables` has found: its tables, and its picture of the servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.planning import WAYS, Job, ShardingPlan

_BAR = 24


@dataclass(frozen=True)
class NamedPlan:
    """A plan and the names of its tables.

    Attributes:
        names: names of the tables.
        job: the job, whose tables are in the same order.
        found: the plan.
        memory: bytes that a server can hold; None: unlimited.
        measured: whether the costs were measured by the user, and are not typical ones.
    """

    names: tuple[str, ...]
    job: Job
    found: ShardingPlan
    memory: float | None
    measured: bool


def print_sharding(console: Console, plan: NamedPlan, files: list[Path]) -> None:
    """Prints where each table goes, the load of each server, and what binds.

    Args:
        console: where to print.
        plan: what was found.
        files: paths of the files that were written.
    """
    found = plan.found
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("table", style="bold")
    table.add_column("rows × units", justify="right")
    table.add_column("entries", justify="right")
    table.add_column("way", style="cyan")
    table.add_column("servers")
    for name, size, place in zip(plan.names, plan.job.tables, found.tables, strict=True):
        servers = place.servers(len(found.seconds))
        several = f"all, from {place.first}" if place.first else "all"
        table.add_row(
            escape(name),
            f"{size.input_dim:,} × {size.units}",
            f"{size.entries:,.4g}",
            place.way,
            several if len(servers) > 1 else str(servers[0]),
        )
    console.print(table)
    loads = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("server", "whole tables", "ms", "GB"):
        loads.add_column(column, justify="right")
    loads.add_column("")
    slowest = max(found.seconds)
    for i, (seconds, stored) in enumerate(zip(found.seconds, found.bytes, strict=True)):
        whole = sum(p.way == "table" and p.first == i for p in found.tables)
        bar = "█" * round(_BAR * seconds / slowest)
        loads.add_row(str(i), str(whole), f"{1e3 * seconds:,.3g}", f"{stored / 1e9:,.3g}", bar)
    console.print(loads)
    ways = ", ".join(
        f"{count} {way}" for way in WAYS if (count := sum(p.way == way for p in found.tables))
    )
    mean = sum(found.seconds) / len(found.seconds)
    server = found.seconds.index(slowest)
    console.print(
        f"[green]plan[/]  {ways}; server {server} is the slowest, {slowest / mean:.2f} × the mean",
        soft_wrap=True,
    )
    if plan.memory is not None:
        share = max(found.bytes) / plan.memory
        console.print(f"[bold]memory[/]  the fullest server is {share:.0%} full", soft_wrap=True)
    if not plan.measured:
        console.print(
            "[dim]The costs of CPU time are typical ones; --measure measures them here.[/]",
            soft_wrap=True,
        )
    for path in files:
        console.print(f"the plan is in {escape(str(path))}", soft_wrap=True)


def draw_sharding(plan: NamedPlan, path: Path) -> None:
    """Draws the predicted milliseconds and the bytes of each server, and writes a PNG.

    Args:
        plan: what was found.
        path: file to write.
    """
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    times, sizes = figure.subplots(1, 2)
    servers = range(len(plan.found.seconds))
    times.bar(servers, [1e3 * s for s in plan.found.seconds], color="C0")
    times.set(xlabel="server", ylabel="ms of a step", xticks=servers)
    sizes.bar(servers, [b / 1e9 for b in plan.found.bytes], color="C1")
    if plan.memory is not None:
        sizes.axhline(plan.memory / 1e9, color="#6b7280", lw=1, ls=(0, (4, 3)))
    sizes.set(xlabel="server", ylabel="GB of tables and slots", xticks=servers)
    figure.savefig(path, dpi=110, metadata={"Software": None})
