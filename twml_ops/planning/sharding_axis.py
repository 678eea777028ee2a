"""The axis by which a table is divided over servers by default (see docs/hybrid.md)."""

from __future__ import annotations

from twml_ops.planning.cpu_costs import CpuCosts, StepParts
from twml_ops.planning.job import ClusterResources, Compute, Job
from twml_ops.planning.predict import axes, predict
from twml_ops.planning.traffic import BY_ROW

EGRESS_PER_CORE = 500e6
"""Bytes per second that a host is assumed to send for each of its cores.

Virtual machines are sold with about 2 Gbit/s for each hyperthread, two of which are a core.
"""

TYPICAL_COSTS = CpuCosts(
    alone=StepParts(
        step=0.00065,
        table=5.1e-05,
        entry=2.5e-08,
        activation=8.9e-11,
        product=1.1e-10,
        weight=1.5e-09,
    ),
    worker=StepParts(
        step=0.00079, message=6.9e-05, table=0.00015, entry=9.6e-09, activation=2.3e-09
    ),
    server=StepParts(
        message=6.7e-05,
        table=2.6e-05,
        entry=1.3e-08,
        activation=1.2e-09,
        product=6e-11,
        weight=1.6e-09,
    ),
)
"""Seconds of `twml-ops plan --measure --slots 1` on the machine of docs/performance.md."""


def is_faster_by_row(job: Job, cluster: ClusterResources, costs: CpuCosts = TYPICAL_COSTS) -> bool:
    """Predicts whether a cluster trains as fast by row as by column, or faster.

    Args:
        job: The tables that are divided by the same axis, and their batches.
        cluster: The hosts; `predict` explains what counts.
        costs: What the parts of a step cost.

    Returns:
        True for rows.
    """
    found = {
        axis: predict(axis, job, cluster, Compute(costs=costs)).seconds
        for axis in axes(job, cluster.servers)
    }
    return min(found, key=lambda axis: found[axis]) == BY_ROW
