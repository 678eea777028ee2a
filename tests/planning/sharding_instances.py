"""Jobs whose tables differ, for the laws of the planner: seeded, and without TensorFlow."""

from __future__ import annotations

import numpy as np

from twml_ops.planning import ClusterResources, Job, Table


def power_law_job(tables: int, seed: int, batch: int = 512) -> Job:
    """Many tables whose rows and entries follow power laws that do not depend on each other."""
    rng = np.random.default_rng(seed)
    return Job(tuple(_table(rng) for _ in range(tables)), batch, slots=1)


def small_instance(seed: int) -> tuple[Job, ClusterResources, float]:
    """At most 8 tables on at most 4 hosts, and the bytes of memory of a host.

    The memory is 1.2 to 4 times the mean number of bytes that the tables need on a host.
    """
    rng = np.random.default_rng(seed)
    hosts = int(rng.integers(1, 5))
    job = power_law_job(int(rng.integers(1, 9)), seed, int(2 ** rng.integers(6, 12)))
    cluster = ClusterResources(
        egress=float(10 ** rng.uniform(7.5, 9.5)),
        servers=hosts,
        workers=int(rng.integers(1, 5)),
        cores=float(rng.choice([0.5, 1, 2, 8])),
    )
    return job, cluster, rng.uniform(1.2, 4) * job.stored_bytes / hosts


def _table(rng: np.random.Generator) -> Table:
    """A table with Pareto-distributed rows and entries, half of the time with hot rows."""
    rows = int(min(1e8, 1000 * (1 + rng.pareto(0.5))))
    entries = float(min(500.0, 1 + rng.pareto(0.8)))
    hot = bool(rng.integers(2))
    return Table(
        rows,
        int(2 ** rng.integers(2, 8)),
        entries,
        hot_rows=max(1, rows // 100) if hot else 0,
        hot_share=float(rng.uniform(0.1, 0.9)) if hot else 0.0,
    )
