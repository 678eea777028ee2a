"""Jobs whose tables differ, for the laws of the planner: seeded, and without TensorFlow."""

from __future__ import annotations

import numpy as np

from benchmarks.sharding_plans.generator import power_law_job
from twml_ops.planning import ClusterResources, Job


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
