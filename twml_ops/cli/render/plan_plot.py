"""The plot of a plan: steps/s against egress, and bytes per step, by strategy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from twml_ops.planning import STRATEGIES, ClusterResources, Compute, Job, Prediction, predict

MARGIN = 10  # the axis ranges from a tenth of the given egress to ten times


def check_path(path: Path | None) -> None:
    """Checks the path of the plot.

    Raises:
        ValueError: `path` does not end in .png.
    """
    if path is not None and path.suffix.lower() != ".png":
        raise ValueError(f"--out must end in .png, got {path}")


def draw(job: Job, cluster: ClusterResources, compute: Compute, overlap: bool, path: Path) -> None:
    """Draws the plot and writes it as a PNG.

    Args:
        job: the job.
        cluster: the cluster.
        compute: measured times.
        overlap: the hybrid strategies overlap a batch with the next one.
        path: file to write, which `check_path` accepts.
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
