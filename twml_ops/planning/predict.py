"""The duration of a step, and the choice of axis and number of servers (see docs/plan.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

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

FRAME_BYTES = 1514  # of a full Ethernet frame
HEADER_BYTES = 66  # of a frame: those that carry no data
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
    """

    strategy: str
    servers: int
    workers: int
    messages: tuple[Message, ...]
    sent: dict[str, float]
    wire_seconds: float
    seconds: float

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
    """Predicts the traffic and the duration of a step.

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
    servers, workers = cluster.servers, 1 if strategy == SINGLE_MACHINE else cluster.workers
    sent_messages = tuple(messages(strategy, job, servers, workers))
    fan_out = {(WORKER, SERVER): servers, (SERVER, WORKER): workers, (WORKER, WORKER): 1}
    sent = {WORKER: 0.0, SERVER: 0.0}
    phases: dict[int, dict[str, float]] = defaultdict(lambda: {WORKER: 0.0, SERVER: 0.0})
    for m in sent_messages:
        total = m.bytes * fan_out[m.sender, m.receiver]
        sent[m.sender] += total
        phases[m.phase][m.sender] += total
    hybrid = strategy in (BY_ROW, BY_COLUMN)
    slowest = [max(phase.values()) for phase in phases.values()]
    bytes_in_turn = max(sent.values()) if overlap and hybrid else sum(slowest)
    wire = bytes_in_turn * WIRE_OVERHEAD / cluster.egress
    # Servers share the arithmetic of a hybrid's tables; otherwise each worker has it all.
    sparse = compute.sparse * workers / servers if hybrid else compute.sparse
    exchanges = len(phases) / (job.every if strategy == PEERS else 1)
    work = sparse + compute.dense + compute.latency * exchanges
    sending = bytes_in_turn * WIRE_OVERHEAD / min(cluster.egress, compute.transport or math.inf)
    seconds = max(sending, work) if overlap and hybrid else sending + work
    return Prediction(strategy, servers, workers, sent_messages, sent, wire, seconds)


def choose(
    job: Job,
    cluster: ClusterResources,
    compute: Compute | None = None,
    *,
    server_memory: float | None = None,
    overlap: bool = False,
) -> Choice:
    """Chooses the sharding axis and the number of servers with the most steps per second.

    Another server is chosen only if it shortens a step by at least 2 %.

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
    if server_memory is not None and not server_memory > 0:
        raise ValueError(f"server_memory must be positive, got {server_memory}")
    least = math.ceil(job.stored_bytes / server_memory) if server_memory else 1
    if least > cluster.servers:
        raise ValueError(
            f"servers must be at least {least}, since tables and slots have "
            f"{job.stored_bytes:,} bytes and a server has {server_memory or 0:,.0f}; "
            f"got {cluster.servers}"
        )
    found = [
        predict(
            axis,
            job,
            ClusterResources(cluster.egress, n, cluster.workers),
            compute,
            overlap=overlap,
        )
        for n in range(least, cluster.servers + 1)
        for axis in (BY_ROW, BY_COLUMN)
        if axis == BY_ROW or all(t.units >= n for t in job.tables)
    ]
    best = found[0]
    for other in found[1:]:
        required = MIN_SPEEDUP if other.servers > best.servers else 0.0
        if other.seconds < best.seconds * (1 - required):
            best = other
    alone = predict(SINGLE_MACHINE, job, cluster, compute)
    return Choice(best, _reason(best, job, least), alone)


def _reason(best: Prediction, job: Job, least: int) -> str:
    other = BY_COLUMN if best.strategy == BY_ROW else BY_ROW
    up = {
        s: sum(
            m.bytes * best.servers
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
