"""The axis by which a table is divided over servers by default (see docs/hybrid.md)."""

from __future__ import annotations

from twml_ops.planning.cpu_costs import CpuCosts
from twml_ops.planning.job import ClusterResources, Compute, Job
from twml_ops.planning.predict import axes, predict
from twml_ops.planning.traffic import BY_ROW

EGRESS_PER_CORE = 250e6
"""Bytes per second that a host is assumed to send for each of its cores: 2 Gbit/s."""

TYPICAL_COSTS = CpuCosts.from_json({"alone": {}, "worker": {}, "server": {}})
"""Costs of `twml-ops plan --measure --slots 1`."""


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
