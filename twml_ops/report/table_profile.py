"""The profile of tables that `twml-ops tables` prints and writes: a table, a plot, or both."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.planning import TierChoice
from twml_ops.report.plots import INK, Draw, svg
from twml_ops.training.table_profile import DataProfile, TableProfile

SHARES = (0.01, 0.1, 0.5)
"""Cache sizes of the printed hit rates, as parts of the rows."""

_CURVES = 10  # of the plot; more cannot be told apart
_PAGE_WIDTH = 130


def check_profile_suffix(path: Path) -> None:
    """Checks the ending of a file to write.

    Args:
        path: the file.

    Raises:
        ValueError: it is neither PNG nor HTML.
    """
    if path.suffix.lower() not in (".png", ".html"):
        raise ValueError(f"--out must end in .png or .html, got {path}")


def print_profile(console: Console, profile: DataProfile, out: Path | None) -> None:
    """Prints the profile.

    Args:
        console: where.
        profile: the profile.
        out: file of the plot; None: there is none.
    """
    console.print(
        f"[bold]{escape(profile.data)}[/]  {profile.examples:,} examples in {profile.batches:,} "
        f"batches of {profile.batch_size:,}, {'shuffled' if profile.shuffled else 'in order'}; "
        f"{profile.row_bytes:,} bytes a row, {profile.examples_per_second:,.0f} examples/s",
        soft_wrap=True,
    )
    console.print(_table(profile))
    console.print(
        "[dim]reads: rows that a step reads, for each of its examples; reuse: median number of "
        "other rows that are read before a row is read again; 1 %, …: hit rate in % of a cache "
        "with so many of the rows; cached: rows in memory[/]"
    )
    for line in _conclusions(profile):
        console.print(line, soft_wrap=True)
    if out is not None:
        console.print(f"the plot is in {escape(str(out))}", soft_wrap=True)


def write_profile(profile: DataProfile, path: Path) -> None:
    """Writes the plot as PNG, or plot and table as HTML.

    Args:
        profile: the profile.
        path: the file.
    """
    if path.suffix.lower() == ".png":
        figure = Figure(figsize=(9, 5), layout="constrained")
        _draw(profile)(figure.add_subplot())
        figure.savefig(path, dpi=110, metadata={"Software": None})
        return
    page = Console(record=True, width=_PAGE_WIDTH, file=io.StringIO())
    print_profile(page, profile, None)
    image = svg(_draw(profile), 9, 5)
    picture = f'<img alt="hit rate by cache size" src="{image}"></body>'
    text = page.export_html(inline_styles=True).replace("</body>", picture)
    title = html.escape(f"tables of {profile.data}")
    path.write_text(text.replace("<head>", f"<head><title>{title}</title>", 1), encoding="utf-8")


def _table(profile: DataProfile) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("field", style="bold", overflow="fold")
    for name in ("rows", "MB", "reads", "MB/s", "reuse"):
        table.add_column(name, justify="right", no_wrap=True)
    for share in SHARES:
        table.add_column(f"{100 * share:g} %", justify="right", style="cyan", no_wrap=True)
    for name in ("tier", "cached", "hits"):
        table.add_column(name, justify="right", no_wrap=True)
    choices: list[TierChoice | None] = [*profile.choices]
    tables = [*profile.tables]
    if profile.whole is not None:
        tables.append(profile.whole)
        choices.append(None)
    for each, choice in zip(tables, choices, strict=True):
        table.add_row(*_cells(each, choice), style="dim" if choice is None else None)
    return table


def _cells(table: TableProfile, choice: TierChoice | None) -> Iterator[str]:
    yield escape(table.name)
    yield f"{'' if table.is_exact else '≈ '}{table.rows:,}"
    yield f"{table.table_bytes / 1e6:,.1f}"
    yield f"{table.reads_per_example:.3f}"
    yield f"{table.bytes_per_second / 1e6:,.2f}"
    distance = table.reuse_distances[0.5]
    yield "–" if distance is None else f"{distance:,}"
    for share in SHARES:
        yield f"{100 * table.hit_rate(share):.1f}"
    if choice is None:
        yield from ("", "", "")
        return
    yield "memory" if choice.in_memory else "file"
    yield f"{choice.cached_rows:,}"
    yield f"{100 * choice.hit_rate:.1f}"


def _conclusions(profile: DataProfile) -> Iterator[str]:
    used = sum(choice.bytes for choice in profile.choices)
    in_file = [c for c in profile.choices if not c.in_memory]
    yield (
        f"[green]memory[/]  {used / 1e6:,.1f} of {profile.memory_bytes / 1e6:,.1f} MB: "
        f"{len(profile.choices) - len(in_file)} tables whole, {len(in_file)} behind caches"
    )
    if in_file:
        misses = profile.misses_per_second
        line = f"[green]files [/]  {misses:,.0f} rows/s are read that no cache has"
        limit = profile.file_reads_per_second
        if limit is not None:
            speed = min(1.0, limit / misses if misses else 1.0)
            line += f"; the device reads {limit:,.0f} rows/s"
            if speed < 1:
                line += f", which allows {speed * profile.examples_per_second:,.0f} examples/s"
        yield line
        yield (
            "        `twml-ops train --storage DIR --cache-rows N` keeps large tables in files: "
            "docs/tiered.md"
        )


def _draw(profile: DataProfile) -> Draw:
    shown = sorted(profile.tables, key=lambda t: -t.bytes_per_second)[:_CURVES]
    places = {t.name: c for t, c in zip(profile.tables, profile.choices, strict=True)}

    def draw(ax: Axes) -> None:
        for i, table in enumerate(shown):
            ax.plot(table.cache_rows, table.hit_rates, color=f"C{i}", lw=1.6, label=table.name)
            choice = places[table.name]
            if not choice.in_memory:
                ax.plot(choice.cached_rows, choice.hit_rate, "o", color=f"C{i}", ms=5)
        if profile.whole is not None:
            whole = profile.whole
            ax.plot(whole.cache_rows, whole.hit_rates, color=INK, lw=1.6, ls="--",
                    label=whole.name)  # fmt: skip
        ax.set(xscale="log", ylim=(0, 1), xlabel="rows in the cache", ylabel="hit rate")
        ax.legend(fontsize=8, frameon=False)

    return draw
