"""The recommended batch size and cluster, and the number of hosts from which a cluster pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from twml_ops.planning.job import ClusterResources, Compute, Job
from twml_ops.planning.predict import MIN_SPEEDUP, Choice, axes, choose, predict, servers_needed
from twml_ops.planning.traffic import SINGLE_MACHINE

MAX_HOSTS = 64


@dataclass(frozen=True)
class Recommendation:
    """What the plan recommends.

    Attributes:
        job: The job with the recommended batch size.
        choice: The recommended axis and servers.
        examples_per_second_by_batch: Examples per second of all workers with the best choice for
            each batch size.
    """

    job: Job
    choice: Choice
    examples_per_second_by_batch: dict[int, float]


def recommend(
    jobs: Sequence[Job],
    cluster: ClusterResources,
    compute: Compute | None = None,
    **options: Any,
) -> Recommendation:
    """Chooses the job with the most examples per second, and its axis and servers.

    A larger batch is chosen only if it has at least 2 % more.

    Args:
        jobs: The same job with one or several batch sizes.
        cluster: See `choose`.
        compute: See `choose`.
        **options: Keyword arguments of `choose`.

    Returns:
        The recommendation.

    Raises:
        ValueError: See `choose`.
    """
    ascending = sorted(jobs, key=lambda job: job.batch)
    choices = {job: choose(job, cluster, compute, **options) for job in ascending}
    rates = {job: c.prediction.steps_per_second * job.batch for job, c in choices.items()}
    best = ascending[0]
    for job in ascending[1:]:
        if rates[job] > rates[best] * (1 + MIN_SPEEDUP):
            best = job
    return Recommendation(best, choices[best], {job.batch: rate for job, rate in rates.items()})


def hosts_to_break_even(
    job: Job,
    cluster: ClusterResources,
    compute: Compute,
    *,
    server_memory: float | None = None,
    overlap: bool = False,
) -> int | None:
    """Finds the smallest number of hosts that is faster than one host by itself.

    Args:
        job: The model and its batches.
        cluster: Egress and cores of each host, and whether servers must be in workers.
        compute: The costs, without which one host has no known speed.
        server_memory: See `choose`.
        overlap: See `predict`.

    Returns:
        The number of hosts, whatever number of them are servers; None: no number up to 64.
    """
    alone = predict(SINGLE_MACHINE, job, cluster, compute).steps_per_second
    least = servers_needed(job, server_memory, MAX_HOSTS)
    for hosts in range(2, MAX_HOSTS + 1):
        splits = [(hosts, hosts, True)]
        if not cluster.servers_in_workers:
            splits += [(hosts - workers, workers, False) for workers in range(1, hosts)]
        for servers, workers, in_workers in splits:
            divided = replace(
                cluster, servers=servers, workers=workers, servers_in_workers=in_workers
            )
            for axis in axes(job, servers) if servers >= least else ():
                found = predict(axis, job, divided, compute, overlap=overlap)
                if found.steps_per_second > alone:
                    return hosts
    return None
