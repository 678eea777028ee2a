"""The axis by which a table is divided over servers by default (see docs/parameter_server.md)."""

from __future__ import annotations

from twml_ops.planning.cpu_costs import CpuCosts, StepParts
from twml_ops.planning.job import ClusterResources, Compute, Job
from twml_ops.planning.predict import axes, predict
from twml_ops.planning.traffic import BY_ROW

EGRESS_PER_CORE = 500e6
"""Bytes per second that a host is assumed to send for each of its cores.

Virtual machines are sold with about 2 Gbit/s for each hyperthread, two of which are a core.
"""

LEAST_GAIN = 0.1
"""The share of a step that columns must save to be chosen; predictions are not more precise."""

TYPICAL_COSTS = CpuCosts(
    alone=StepParts(
        step=0.00041,
        table=4.2e-05,
        entry=8.5e-09,
        activation=4.3e-10,
        product=1.8e-11,
        weight=8.3e-10,
    ),
    worker=StepParts(step=0.00062, table=9.4e-05, entry=4.9e-09, activation=1.9e-09),
    server=StepParts(
        message=3.4e-05,
        table=2e-05,
        entry=6.5e-09,
        activation=8.1e-10,
        product=2.7e-11,
        weight=5.9e-10,
    ),
)
"""Seconds of `twml-ops plan --measure --slots 1` on the machine of docs/performance.md.

They were measured when shards, rows and outputs had no costs of their own: the other costs contain
what these parts cost with one server.
"""


def prefers_rows(job: Job, cluster: ClusterResources, costs: CpuCosts = TYPICAL_COSTS) -> bool:
    """Predicts whether rows are the better axis: unless columns save `LEAST_GAIN` of a step.

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
    by_row = found.pop(BY_ROW)
    return all(seconds > (1 - LEAST_GAIN) * by_row for seconds in found.values())
