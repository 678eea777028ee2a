"""Plots of the sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.contender import FORWARD, TWML_OPS

LABELS = {
    "units": "units (D)",
    "batch_size": "rows in a batch (B)",
    "row_length": "entries a row",
    "skew": "Zipf exponent of the ids (0: uniform)",
    "input_dim": "rows of the table (N), the same rows touched",
    "threads": "threads",
}
TITLES = {FORWARD: "forward", "sgd": "step with SGD"}


def draw(axis: str, points: dict[str, Any], path: Path) -> None:
    """Plots time over the values of an axis, with one panel per measured task.

    Args:
        axis: a key of LABELS.
        points: value -> task -> contender -> timing.
        path: the path of the PNG file.
    """
    tasks = [t for t in TITLES if any(t in p for p in points.values())]
    figure = Figure(figsize=(4.2 * len(tasks), 3.2), layout="constrained")
    for panel, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for name in dict.fromkeys(n for p in points.values() for n in p.get(task, {})):
            at = [(float(v), p[task][name]) for v, p in points.items() if name in p.get(task, {})]
            x, times = zip(*at, strict=True)
            (line,) = panel.plot(
                x,
                [1e3 * t["median"] for t in times],
                marker="o",
                markersize=3,
                linewidth=2.4 if name == TWML_OPS else 1.2,
                label=name,
            )
            quartiles = ([1e3 * t[side] for t in times] for side in ("lower", "upper"))
            panel.fill_between(x, *quartiles, color=line.get_color(), alpha=0.15, linewidth=0)
        if axis not in ("skew", "threads"):
            panel.set_xscale("log", base=2 if axis == "input_dim" else 10)
        panel.set_yscale("log")
        panel.set_title(TITLES[task], fontsize=10)
        panel.set_xlabel(LABELS[axis], fontsize=9)
        panel.set_ylabel("ms", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=6.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None})
