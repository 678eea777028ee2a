"""Markdown tables and a plot of the results of `grid`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.distributed.grid import BY_COLUMN, BY_ROW, SETTINGS, SINGLE, STANDARD
from benchmarks.steal_time import MAX_FRACTION
from benchmarks.tables import machine, markdown

PICTURE = "distributed.png"
Cells = dict[str, dict[str, dict[str, dict[str, Any]]]]


def section(result: dict[str, Any], images: str) -> str:
    """The summary, the comparison of rows and columns, and every cell beside its prediction.

    Args:
        result: raw results of `grid.measure`, with the machine.
        images: folder of the plot, relative to the page.
    """
    w, cells = result["workload"], result["cells"]
    head = (
        f"{machine(result['machine'])}\n\n"
        f"D = {w['units']}, B = {w['batch_size']:,}, about {w['row_length']} entries per example "
        "(binary, Zipf 1.05), SGD. A step is one batch of one worker; steps/s are the sum over all "
        "workers. All hosts share the cores of this machine. Turns with more than "
        f"{MAX_FRACTION:.0%} steal time do not count; * marks cells that had no other turns."
    )
    if "transport" in result:
        head += f" Without a cap, a host sends {result['transport'] / 1e6:,.0f} MB/s."
    parts = [head, f"![steps/s]({images}/{PICTURE})", _summary(cells), _axes(cells), _all(cells)]
    failed = "; ".join(f"{name}: {why}" for name, why in result.get("failed", {}).items())
    return "\n\n".join([*(p for p in parts if p), *([f"Not measured: {failed}"] * bool(failed))])


def _summary(cells: Cells) -> str:
    """Steps/s of every cell, relative to the standard strategy and to the network limit."""
    rows = []
    for setting, cap, by_strategy in _settings(cells):
        standard = by_strategy.get(STANDARD)
        for strategy, cell in by_strategy.items():
            ratio = f"{cell['steps'] / standard['steps']:,.0f} ×" if standard else "–"
            limit = f"{cell['steps'] / cell['limit']:.0%}" if cell["limit"] else "–"
            at = "–" if strategy == SINGLE else cap
            mark = " *" if cell.get("disturbed") else ""
            rows.append([setting, at, strategy, _figure(cell["steps"]) + mark, ratio, limit])
    header = ["", "MB/s per host", "strategy", "steps/s", "÷ standard", "of the network limit"]
    return f"### Steps\n\n{markdown(header, rows)}" if rows else ""


def _axes(cells: Cells) -> str:
    """Comparison of partitioning by row and by column."""
    rows = []
    for setting, cap, by_strategy in _settings(cells):
        if BY_ROW in by_strategy and BY_COLUMN in by_strategy:
            row, column = by_strategy[BY_ROW], by_strategy[BY_COLUMN]
            less = 1 - row["steps"] / column["steps"]
            planned = 1 - row["predicted_steps"] / column["predicted_steps"]
            sent = [f"{c['bytes'] / 1e6:.3g}" for c in (row, column)]
            rates = [_figure(c["steps"]) for c in (row, column)]
            rows.append([setting, cap, *sent, *rates, f"{less:+.0%}", f"{planned:+.0%}"])
    header = ["", "MB/s per host", "MB by row", "MB by column", "steps/s by row", "by column"]
    header += ["time saved by column", "predicted"]
    return f"### By row and by column\n\n{markdown(header, rows)}" if rows else ""


def _all(cells: Cells) -> str:
    rows = []
    for setting, cap, by_strategy in _settings(cells):
        for strategy, c in by_strategy.items():
            if strategy == SINGLE:
                continue
            rows.append(
                [
                    *(setting, cap, strategy),
                    *(f"{c[k] / 1e6:.3g}" for k in ("bytes", "predicted_bytes")),
                    f"{c['bytes'] / c['predicted_bytes']:.2f}" if c["predicted_bytes"] else "–",
                    *(_figure(c[k]) for k in ("free", "steps", "predicted_steps")),
                    f"{c['steps'] / c['predicted_steps']:.2f}",
                ]
            )
    header = ["", "MB/s per host", "strategy", "MB per step", "predicted", "ratio"]
    header += ["steps/s without a cap", "steps/s", "predicted", "ratio"]
    return f"### Measured and predicted\n\n{markdown(header, rows)}" if rows else ""


def _settings(cells: Cells) -> list[tuple[str, str, dict[str, Any]]]:
    """(setting, cap, strategy -> cell) in the order of the grid."""
    order = {s.name: i for i, s in enumerate(SETTINGS)}
    found = []
    for setting in sorted(cells, key=lambda name: order.get(name, len(order))):
        caps = dict.fromkeys(cap for by_cap in cells[setting].values() for cap in by_cap)
        single = next(iter(cells[setting].get(SINGLE, {}).values()), None)  # the same for any cap
        for cap in sorted(caps, key=float):
            networked = {
                strategy: by_cap[cap]
                for strategy, by_cap in cells[setting].items()
                if cap in by_cap and strategy != SINGLE
            }
            found.append((setting, cap, ({SINGLE: single} if single else {}) | networked))
    return found


def _figure(steps: float) -> str:
    return f"{steps:,.0f}" if steps >= 100 else f"{steps:.3g}"


def draw(cells: Cells, path: Path) -> None:
    """Measured (points) and predicted (lines) steps/s over egress and over the table's size."""
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    by_cap, by_size = figure.subplots(1, 2, sharey=True)
    base = SETTINGS[0]
    caps = {
        strategy: {float(cap): cell for cap, cell in found.items()}
        for strategy, found in cells.get(base.name, {}).items()
    }
    sizes: dict[str, dict[float, Any]] = {}
    for setting in SETTINGS:
        if (setting.servers, setting.workers, setting.units) == (base.servers, base.workers, 0):
            for strategy, found in cells.get(setting.name, {}).items():
                cell = next(iter(found.values())) if strategy == SINGLE else found.get("150")
                if cell:
                    sizes.setdefault(strategy, {})[2.0**setting.power * 512 / 1e6] = cell
    for panel, points in ((by_cap, caps), (by_size, sizes)):
        for i, strategy in enumerate((SINGLE, *(s for s in base.strategies if s != SINGLE))):
            at = sorted(points.get(strategy, {}).items())
            if not at or (panel is by_cap and strategy == SINGLE):
                continue
            x = [a for a, _ in at]
            panel.plot(x, [c["steps"] for _, c in at], "o", color=f"C{i}", label=strategy)
            panel.plot(x, [c["predicted_steps"] for _, c in at], "-", color=f"C{i}", lw=1)
        panel.set(xscale="log", yscale="log")
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=8)
    by_cap.set_xlabel("egress of a host, MB/s (256 MB table)", fontsize=9)
    by_size.set_xlabel("table, MB (150 MB/s)", fontsize=9)
    by_cap.set_ylabel("steps/s; lines: predicted", fontsize=9)
    handles, _ = by_size.get_legend_handles_labels()
    if handles:
        by_size.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None})
