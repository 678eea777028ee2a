"""What the commands print: a few lines and one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.cli.render.report import explain
from twml_ops.cli.render.terminal import console
from twml_ops.data import Source

if TYPE_CHECKING:
    from twml_ops.tpu import Verdict

__all__ = ["console", "data", "metrics", "model"]


def data(console: Console, train: Source, held_out: Source, *sizes: int) -> None:
    """One line on what is trained and evaluated on, one on the features."""
    console.print(
        f"[bold]data [/]  {escape(train.name)}: {sizes[0]:,} examples, "
        f"evaluated on {escape(held_out.name)}: {sizes[1]:,}",
        soft_wrap=True,
    )
    s = train.schema
    groups = {"continuous": len(s.continuous), "categorical": len(s.categorical)}
    parts = [f"{n} {name} features" for name, n in groups.items() if n]
    parts += [f"sparse ids below {s.sparse_dim:,}"] if s.sparse_dim else []
    console.print(f"        {', '.join(parts)}; positive: {escape(s.label)}", soft_wrap=True)


def model(console: Console, name: str, count: int, optimizer: str) -> None:
    """One line on what is trained: the model `name` with `count` weights."""
    console.print(f"[bold]model[/]  {name}: {count:,} weights, trained by {optimizer}")


def metrics(
    console: Console, values: Mapping[str, float], before: Mapping[str, float] | None = None
) -> None:
    """The metrics, one a row, each explained; those `before` a calibration next to them."""
    table = Table(box=box.SIMPLE_HEAD, show_header=before is not None, pad_edge=False)
    table.add_column(style="bold")
    if before is not None:
        table.add_column("before", justify="right")
    table.add_column("after", justify="right", style="cyan")
    table.add_column(style="dim")
    for row in explain(values, before):
        numbers = [row["value"]] if before is None else [row["before"], row["value"]]
        table.add_row(row["name"], *numbers, row["note"])
    console.print(table)


def tpu_verdict(console: Console, verdict: Verdict, batch_size: int) -> None:
    """What `twml-ops tpu-check` found."""
    from twml_ops.tpu import chips

    chip, compiled = verdict.chip, verdict.compiled
    if compiled is None:
        assert verdict.problem is not None
        where = verdict.problem.layer
        console.print(f"[bold red]does not compile[/] for {chip.name}")
        console.print(f"layer   {escape(where) if where else 'not known'}")
        console.print(f"why     {escape(verdict.problem.why)}", soft_wrap=True)
        return
    console.print(
        f"[bold green]compiles[/] for {compiled.device} ({chip.name}:{verdict.topology}, "
        f"{compiled.devices} devices), {batch_size:,} examples a device and step"
    )
    bound = "memory" if verdict.memory_seconds >= verdict.compute_seconds else "compute"
    share = compiled.memory / chip.hbm
    rows = [
        ("FLOPs", f"{compiled.flops:,.0f}", f"{verdict.compute_seconds * 1e3:.3f} ms at the peak"),
        ("bytes", f"{compiled.bytes:,.0f}", f"{verdict.memory_seconds * 1e3:.3f} ms at bandwidth"),
        ("step, at least", f"{verdict.seconds * 1e3:.3f} ms", f"bound by {bound}"),
        ("memory", _mib(compiled.memory), f"{share:.1%} of {chip.hbm >> 30} GiB"),
        ("  weights, slots, batch", _mib(compiled.arguments), ""),
        ("  temporary", _mib(compiled.temporary), ""),
        ("  results, program", _mib(compiled.outputs + compiled.code), ""),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if verdict.tables:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("table")
        for column in ("rows", "units", "with slots", f"a device of {compiled.devices}"):
            table.add_column(column, justify="right")
        for t in verdict.tables:
            sizes = _mib(t.bytes), _mib(t.share)
            table.add_row(escape(t.name), f"{t.rows:,}", f"{t.units:,}", *sizes)
        console.print(table)
    if not verdict.fits:
        console.print("[bold red]does not fit[/] with the whole tables on each device")
    console.print(f"[dim]peak, bandwidth and memory of the chip: {chips.SOURCE}[/]")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
