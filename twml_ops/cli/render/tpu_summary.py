"""What `twml-ops tpu-check` and `twml-ops gpu-check` print."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.tpu import CompileReport

# What was run on a card, on which and when; docs/gpu.md has the details.
CUDA_KERNELS = "the CUDA kernels of twml_ops have not run on a GPU yet; see docs/gpu.md"


def print_compile_report(console: Console, report: CompileReport, batch_size: int) -> None:
    """Prints what the compiler reports: the cost of a step, or why it does not compile.

    Args:
        console: where to print.
        report: the result of `tpu.check`.
        batch_size: number of examples of a device in a step.
    """
    chip, compiled = report.chip, report.compiled
    if compiled is None:
        assert report.problem is not None
        where = report.problem.layer
        console.print(f"[bold red]does not compile[/] for {chip.name}")
        console.print(f"layer   {escape(where) if where else 'unknown'}")
        console.print(f"reason  {escape(report.problem.why)}", soft_wrap=True)
        return
    console.print(
        f"[bold green]compiles[/] for {compiled.device} ({chip.name}:{report.topology}, "
        f"{compiled.devices} devices), {batch_size:,} examples per device in a step"
    )
    time = "step, minimum" if report.seconds_are_lower_bound else "step, estimate"
    bound = "memory" if report.memory_seconds >= report.compute_seconds else "compute"
    share = compiled.memory / chip.hbm
    rows = [
        (
            "FLOPs",
            f"{compiled.flops:,.0f}",
            f"{report.compute_seconds * 1e3:.3f} ms at peak FLOP/s",
        ),
        (
            "bytes",
            f"{compiled.bytes:,.0f}",
            f"{report.memory_seconds * 1e3:.3f} ms at peak bandwidth",
        ),
        (time, f"{report.seconds * 1e3:.3f} ms", f"{bound}-bound"),
        ("tables", "in place" if report.in_place else "copied in every step", ""),
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
    if report.tables:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("table")
        for column in (
            "rows",
            "units",
            "with slots",
            f"share of one of {compiled.devices} devices",
        ):
            table.add_column(column, justify="right")
        for t in report.tables:
            sizes = _mib(t.bytes), _mib(t.share)
            table.add_row(escape(t.name), f"{t.rows:,}", f"{t.units:,}", *sizes)
        console.print(table)
    if not report.fits:
        console.print("[bold red]does not fit[/] in memory with the whole tables on each device")
    if not report.seconds_are_lower_bound:
        console.print(
            "[dim]FLOPs and bytes are counted before XLA fuses operations, so a step may take less "
            "than the estimate[/]"
        )
    console.print(f"[dim]peak FLOP/s, bandwidth and memory of the chip: {chip.source}[/]")
    if chip.gpu is not None:
        console.print(f"[dim]this compiles for a GPU, and runs nothing: {CUDA_KERNELS}[/]")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
