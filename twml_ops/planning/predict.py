"""The duration of a step, and the choice of axis and servers (see docs/plan.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from twml_ops.planning.cpu_costs import CpuTime, StepParts
from twml_ops.planning.job import ClusterResources, Compute, Job
from twml_ops.planning.traffic import (
    BY_COLUMN,
    BY_ROW,
    PEERS,
    SERVER,
    SINGLE_MACHINE,
    WORKER,
    Message,
    messages,
)
from twml_ops.planning.waiting import consistent, cycle, saved_by_bursts
from twml_ops.planning.work import work_alone, work_in_cluster

FRAME_BYTES = 1514  # of a full Ethernet frame
HEADER_BYTES = 66  # bytes of a frame that carry no data
WIRE_OVERHEAD = FRAME_BYTES / (FRAME_BYTES - HEADER_BYTES)
MIN_SPEEDUP = 0.02  # by which share another server has to shorten a step to be chosen


@dataclass(frozen=True)
class Prediction:
    """The traffic and duration of a step, in which every worker trains on one batch.

    Attributes:
        strategy: The name of the strategy.
        servers: S, the number of servers.
        workers: W, the number of workers.
        messages: The messages of the step.
        sent: Bytes that one host sends in the step, by "worker" and "server".
        wire_seconds: Duration of the transfers alone, in seconds.
        seconds: Duration of the step, in seconds.
        worker_cpu: CPU time of a worker in the step, in seconds on one core.
        server_cpu: CPU time of a server in the step, for all workers; 0 without servers.
        servers_in_workers: Whether servers run on the hosts of workers.
    """

    strategy: str
    servers: int
    workers: int
    messages: tuple[Message, ...]
    sent: dict[str, float]
    wire_seconds: float
    seconds: float
    worker_cpu: float = 0.0
    server_cpu: float = 0.0
    servers_in_workers: bool = False

    @property
    def links(self) -> dict[str, float]:
        """Bytes per step on one link of each kind, by names such as "worker → server"."""
        by_link: dict[str, float] = defaultdict(float)
        for m in self.messages:
            by_link[f"{m.sender} → {m.receiver}"] += m.bytes
        return dict(by_link)

    def wire_bytes(self) -> float:
        """Returns how much all hosts together send in a step.

        Returns:
            Bytes, including the headers of Ethernet, IP and TCP.
        """
        return WIRE_OVERHEAD * (self.sent[WORKER] * self.workers + self.sent[SERVER] * self.servers)

    @property
    def steps_per_second(self) -> float:
        """Batches per second, of all workers together; infinite if no part of a step takes time."""
        return self.workers / self.seconds if self.seconds else math.inf

    @property
    def wire_limit(self) -> float:
        """Batches per second if only transfers took time."""
        return self.workers / self.wire_seconds if self.wire_seconds else math.inf


@dataclass(frozen=True)
class Choice:
    """The fastest hybrid strategy.

    Attributes:
        prediction: Its prediction, with the number of servers.
        reason: Why it was chosen, in one sentence.
        alone: The prediction for a single machine.
    """

    prediction: Prediction
    reason: str
    alone: Prediction

    @property
    def is_slower_than_alone(self) -> bool:
        """Whether a single machine makes as many steps per second, if its speed is known."""
        known = bool(self.alone.seconds)
        return known and self.alone.steps_per_second >= self.prediction.steps_per_second


def predict(
    strategy: str,
    job: Job,
    cluster: ClusterResources,
    compute: Compute | None = None,
    *,
    overlap: bool = False,
) -> Prediction:
    """Predicts the traffic and the duration of a step, in which every worker trains on one batch.

    Args:
        strategy: A key of `STRATEGIES`.
        job: The model and its batches.
        cluster: The hosts. "single machine" uses one worker of them.
        compute: The costs that do not depend on the network; None: none, so that only transfers
            take time.
        overlap: Whether a hybrid strategy sends the entries of the next batch during the current
            step.

    Returns:
        The prediction.

    Raises:
        ValueError: There is no strategy of that name.
    """
    compute = compute or Compute()
    hybrid = strategy in (BY_ROW, BY_COLUMN)
    if strategy == SINGLE_MACHINE:
        cluster = replace(cluster, workers=1)
    if not hybrid:
        cluster = replace(cluster, servers_in_workers=False)
    servers, workers, together = cluster.servers, cluster.workers, cluster.servers_per_host
    sent_messages = tuple(messages(strategy, job, servers, workers))
    fan_out = {(WORKER, SERVER): servers, (SERVER, WORKER): workers, (WORKER, WORKER): 1}
    sent = {WORKER: 0.0, SERVER: 0.0}
    phases: dict[int, dict[str, float]] = defaultdict(lambda: {WORKER: 0.0, SERVER: 0.0})
    for m in sent_messages:
        total = m.bytes * fan_out[m.sender, m.receiver]
        sent[m.sender] += total * cluster.remote_share
        phases[m.phase][m.sender] += total
    worker, server, packing = _cpu(strategy, job, cluster, compute)

    def busiest(amounts: dict[str, float]) -> float:
        if not cluster.servers_in_workers:
            return max(amounts.values())
        return max(  # of the hosts with the fewest and with the most servers
            amounts[WORKER] * (1 - own / servers) + own * amounts[SERVER] * (1 - 1 / workers)
            for own in {servers // workers, together}
        )

    bytes_in_turn = sum(busiest(phase) for phase in phases.values())
    if overlap and hybrid:
        bytes_in_turn = busiest({k: sum(p[k] for p in phases.values()) for k in sent})
    rate = min(cluster.egress, compute.transport or math.inf) / WIRE_OVERHEAD
    sending = bytes_in_turn / rate
    latency = compute.latency * len(phases) / (job.every if strategy == PEERS else 1)
    of_worker = worker.elapsed(cluster.cores)
    of_server = server.elapsed(cluster.cores) * together
    apart = cluster.asynchronous and hybrid and not cluster.servers_in_workers
    waiting = of_server if apart else of_server * workers

    def duration(step: float) -> float:
        """The duration of a step in which hosts are as busy as in steps of this duration."""
        in_steps = 1 if apart else workers  # batches of a server in its part of a step
        at_worker = of_worker - saved(worker.total, worker.total, step)
        at_server = waiting - saved(server.total * in_steps, server.total * workers, step)
        if not cluster.servers_in_workers:  # their hosts are busy with the servers
            hidden = min(packing.elapsed(cluster.cores), at_worker, at_server)
            at_worker -= hidden * (1 - 1 / cluster.steps_per_call)
        if not apart:
            return sending + latency + at_worker + at_server
        own = at_worker + sent[WORKER] / rate + latency
        return cycle(workers, own, [at_server, sent[SERVER] / workers / rate])

    def saved(cpu: float, busy: float, step: float) -> float:
        if not hybrid or cluster.servers_in_workers:  # no host is idle for long
            return 0.0
        return saved_by_bursts(cpu, cluster.cores, cluster.burst, busy, step)

    if overlap and hybrid:
        work = max(of_worker, of_server * workers) if apart else of_worker + waiting
        seconds = max(sending, work + latency)
    else:
        seconds = consistent(duration)
    return Prediction(
        *(strategy, servers, workers, sent_messages, sent),
        wire_seconds=bytes_in_turn * WIRE_OVERHEAD / cluster.egress,
        seconds=seconds,
        worker_cpu=worker.total,
        server_cpu=server.total * workers,
        servers_in_workers=cluster.servers_in_workers,
    )


def calibrate(
    strategy: str,
    job: Job,
    cluster: ClusterResources,
    compute: Compute,
    worker_cpu: float,
    server_cpu: float,
) -> Compute:
    """Finds the costs for which the predicted CPU time of a cluster is the measured one.

    The model of a training may need more than the small models from which `compute.costs` are: a
    deep dense part, an input pipeline, layers before its tables. Measured with one server and as
    few workers as possible, the difference holds for other numbers of them. Several workers cost a
    server more for a batch than one does, so that the two are calibrated apart.

    Args:
        strategy: "hybrid by row" or "hybrid by column".
        job: The model and its batches.
        cluster: The cluster that was measured.
        compute: The costs, with `costs`; `dense` and `sparse` are replaced.
        worker_cpu: CPU time of a worker for its batch, in seconds.
        server_cpu: CPU time of a server for the batch of one worker, in seconds.

    Returns:
        `compute` with `dense` and `sparse` that make up the difference; 0 where less was measured.
    """
    bare = replace(compute, dense=0.0, sparse=0.0)
    worker, server, _ = _cpu(strategy, job, cluster, bare)
    return replace(
        bare,
        dense=max(0.0, worker_cpu - worker.total),
        sparse=max(0.0, server_cpu - server.total) * cluster.servers,
    )


def _cpu(
    strategy: str, job: Job, cluster: ClusterResources, compute: Compute
) -> tuple[CpuTime, CpuTime, CpuTime]:
    """CPU time of a step: of a worker, of a server for one worker's batch, and of packing entries.

    Packing is a part of the worker's.
    """
    costs = compute.costs
    if strategy not in (BY_ROW, BY_COLUMN):  # each worker has all arithmetic
        own = CpuTime(compute.dense, compute.sparse)
        return own + work_alone(job).times(costs.alone) if costs else own, CpuTime(), CpuTime()
    worker, server = CpuTime(compute.dense), CpuTime(0.0, compute.sparse / cluster.servers)
    if not costs:
        return worker, server, CpuTime()
    servers, workers, remote = cluster.servers, cluster.workers, cluster.remote_share
    work = work_in_cluster(strategy, job, servers, workers, remote)
    return (
        worker + work.worker.times(costs.worker),
        server + work.server.times(costs.server),
        StepParts(entry=work.worker.entry).times(costs.worker),
    )


def choose(
    job: Job,
    cluster: ClusterResources,
    compute: Compute | None = None,
    *,
    server_memory: float | None = None,
    overlap: bool = False,
) -> Choice:
    """Chooses the sharding axis and the number of servers with the most steps per second.

    Another server is chosen only if it shortens a step by at least 2 %. With `compute.costs`,
    servers in the processes of workers are considered too, and chosen unless servers on their own
    hosts shorten a step by as much. Servers on their own hosts are not considered if the cluster
    has none.

    Args:
        job: The model and its batches.
        cluster: The hosts; `cluster.servers` is the largest number of servers to consider.
        compute: See `predict`.
        server_memory: Bytes that one server has for tables and slots; None: no limit.
        overlap: See `predict`.

    Returns:
        The choice and its reason.

    Raises:
        ValueError: `cluster.servers` servers cannot hold the tables, or `server_memory` is not
            positive.
    """
    least = servers_needed(job, server_memory, cluster.servers)
    places = [cluster.servers_in_workers]
    if compute is not None and compute.costs is not None and not cluster.servers_in_workers:
        places = [True, False]
    found = [
        predict(
            axis,
            job,
            replace(cluster, servers=n, servers_in_workers=place),
            compute,
            overlap=overlap,
        )
        for place in places
        for n in range(least, cluster.servers + 1)
        for axis in axes(job, n)
    ]
    best = found[0]
    for other in found[1:]:
        more = (not other.servers_in_workers, other.servers)
        required = MIN_SPEEDUP if more > (not best.servers_in_workers, best.servers) else 0.0
        if other.seconds < best.seconds * (1 - required):
            best = other
    alone = predict(SINGLE_MACHINE, job, cluster, compute)
    return Choice(best, _reason(best, job, least), alone)


def servers_needed(job: Job, server_memory: float | None, servers: int) -> int:
    """Computes how many servers must hold the tables and slots.

    Args:
        job: The model.
        server_memory: Bytes that one server has for them; None: no limit.
        servers: How many there are.

    Returns:
        The least number of servers.

    Raises:
        ValueError: More servers are needed, or `server_memory` is not positive.
    """
    if server_memory is not None and not server_memory > 0:
        raise ValueError(f"server_memory must be positive, got {server_memory}")
    least = math.ceil(job.stored_bytes / server_memory) if server_memory else 1
    if least > servers:
        raise ValueError(
            f"servers must be at least {least}, since tables and slots have "
            f"{job.stored_bytes:,} bytes and a server has {server_memory or 0:,.0f}; got {servers}"
        )
    return least


def axes(job: Job, servers: int) -> list[str]:
    """Returns the strategies by which so many servers can share the tables.

    Args:
        job: The model.
        servers: S, the number of servers.
    """
    by_column = all(t.units >= servers for t in job.tables)
    return [BY_ROW, BY_COLUMN] if by_column else [BY_ROW]


def _reason(best: Prediction, job: Job, least: int) -> str:
    other = BY_COLUMN if best.strategy == BY_ROW else BY_ROW
    remote = 1 - 1 / best.workers if best.servers_in_workers else 1.0
    up = {
        s: sum(
            m.bytes * best.servers * remote
            for m in messages(s, job, best.servers, best.workers)
            if m.sender == WORKER and m.receiver == SERVER
        )
        for s in (best.strategy, other)
    }
    why = (
        "one server: both axes are the same"
        if best.servers == 1
        else f"a worker sends {up[best.strategy] / 1e6:,.2f} MB a step, "
        f"{other.removeprefix('hybrid ')} {up[other] / 1e6:,.2f} MB"
    )
    needed = f"; at least {least} must hold the tables" if least > 1 else ""
    return why + needed
