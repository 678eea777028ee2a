"""Runs a cell on hosts with a share of a core and a limited wire, and measures it."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import steal_time
from benchmarks.curve import process
from benchmarks.curve.cells import Cell
from benchmarks.distributed.cpu_groups import MIN_QUOTA_US
from benchmarks.distributed.forked import fork_on
from benchmarks.distributed.network import Network
from benchmarks.distributed.process import HostError, HostProcess

SERVER_PORT, WORKER_PORT = 2222, 2223
START_SECONDS = 300.0
ANSWER_SECONDS = 60.0
LEARN_SECONDS = 240.0
POLL_SECONDS = 0.5
WARM_UP_CALLS = 3  # of each worker, without limits
SETTLE_SECONDS = 3.0  # with limits, before the measurement
LEAST_CALLS = 3  # of each worker in the measurement
LONGEST = 6  # times as long as asked for, so that slow workers do these calls
Calls = list[tuple[float, int, float]]  # (end by the clock, steps, mean loss)


@dataclass(frozen=True)
class Limits:
    """What each host has of this machine.

    Attributes:
        share: the share of one core.
        quota_us: microseconds of a core that a host may use at once, before others have their turn.
        spare_cores: cores that this process does not use, which hosts may use as well until the
            limits come.
    """

    share: float
    quota_us: int = MIN_QUOTA_US
    spare_cores: tuple[int, ...] = ()

    def cores(self, host: int) -> list[int]:
        """The cores on which a host starts: as many as it has later.

        Args:
            host: its number.
        """
        own = sorted(os.sched_getaffinity(0))
        every = own + [core for core in self.spare_cores if core not in own]
        groups = [every[i : i + len(own)] for i in range(0, len(every), len(own))]
        return groups[host % len(groups)]


def measure(cell: Cell, limits: Limits, seconds: float) -> dict[str, Any]:
    """Measures a cell.

    The processes start, and make their first steps, without limits.

    Args:
        cell: the cell.
        limits: the limits of each host.
        seconds: the seconds of the measurement; it takes longer if a worker ends too few calls.

    Returns:
        `steps`: batches per second of all workers, or of the mean host if hosts train by
        themselves; `cpu` and `sent`: host -> share of a core and bytes per second that it has used;
        `egress`: bytes per second that a host can send, or None; `share`, `quota_us`: the limits;
        `seconds`: the duration; `disturbed`: whether there was steal time; `losses`: (seconds since
        the beginning of the measurement, batches of all workers, mean loss) of the calls.

    Raises:
        HostError: a process failed, or there was too little progress.
        NetworkError: the hosts cannot be created.
    """
    with Network(cell.hosts, cpu=True) as network, processes(network, cell, limits) as hosts:
        workers = hosts[-cell.trainers :]
        calls: list[Calls] = [[] for _ in workers]
        wait(workers, calls, [WARM_UP_CALLS] * len(workers), START_SECONDS)
        _limit(network, hosts, cell, limits)
        time.sleep(SETTLE_SECONDS)
        fetch(workers, calls)
        monitor = steal_time.StealTimeMonitor()
        start, cpu, sent = time.monotonic(), network.cpu_seconds(), network.sent()
        time.sleep(seconds)
        wanted = [sum(end < start for end, *_ in c) + LEAST_CALLS for c in calls]
        wait(workers, calls, wanted, LONGEST * seconds)
        took = time.monotonic() - start
        cpu = {h: (t - cpu[h]) / took for h, t in network.cpu_seconds().items()}
        sent = {h: round((n - sent[h]) / took) for h, n in network.sent().items()}
        undisturbed = monitor.undisturbed()
    measured = [[call for call in of_worker if call[0] >= start] for of_worker in calls]
    return {
        "steps": sum(rate(c) for c in measured) / (1 + cell.beside),
        "cpu": cpu,
        "sent": sent,
        "egress": cell.egress(limits.share),
        "share": limits.share,
        "quota_us": limits.quota_us,
        "seconds": took,
        "disturbed": not undisturbed,
        "losses": curve(measured, start),
    }


def learn(cell: Cell, limits: Limits, batches: int) -> dict[str, Any]:
    """Trains a cell on so many batches, including the batches of the start, and evaluates the
    model.

    Each worker waits after its first call until all have done one and the limits have come.

    Args:
        cell: the cell.
        limits: the limits of each host.
        batches: the number of batches of all workers together.

    Returns:
        `loss`: of held-out data; `seconds`: with limits, without the first call of each worker.

    Raises:
        HostError: a process failed, or the training takes too long.
        NetworkError: the hosts cannot be created.
    """
    with (
        Network(cell.hosts, cpu=True) as network,
        processes(network, cell, limits, batches) as hosts,
    ):
        workers = hosts[-cell.trainers :]
        calls: list[Calls] = [[] for _ in workers]
        wait(workers, calls, [1] * len(workers), START_SECONDS)
        _limit(network, hosts, cell, limits)
        start = time.monotonic()
        for worker in workers:
            worker.request({"do": "go_on"}, ANSWER_SECONDS)
        while not fetch(workers, calls):
            if time.monotonic() > start + LEARN_SECONDS:
                raise HostError(f"the training has not ended in {LEARN_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        network.cap_cpu(None)
        found = workers[0].request({"do": "evaluate"}, START_SECONDS)
    seconds = max(c[-1][0] for c in calls) - start
    return {**found, "seconds": seconds, "losses": curve(calls, start)}


def rate(calls: Calls) -> float:
    """Steps per second of a worker, between the ends of its first and its last call."""
    duration = calls[-1][0] - calls[0][0]
    return sum(steps for _, steps, _ in calls[1:]) / duration


def curve(calls: Sequence[Calls], start: float, points: int = 20) -> list[list[float]]:
    """Losses of the calls of all workers, in at most so many points.

    Returns:
        Lists of [seconds since `start`, batches until then, mean loss since the last point].
    """
    merged = sorted(itertools.chain.from_iterable(calls))
    size = -(-len(merged) // points)
    found, batches = [], 0
    for i in range(0, len(merged), size):
        group = merged[i : i + size]
        count = sum(steps for _, steps, _ in group)
        batches += count
        loss = sum(steps * loss for _, steps, loss in group) / count
        found.append([group[-1][0] - start, batches, loss])
    return found


@contextlib.contextmanager
def processes(
    network: Network, cell: Cell, limits: Limits, batches: int | None = None
) -> Iterator[list[HostProcess]]:
    """The processes of all hosts, in their order; the workers train."""
    addresses = [network.address(host) for host in cell.hosts]
    own_hosts = len(addresses) - cell.trainers  # of servers
    cluster = {
        "servers": [f"{a}:{SERVER_PORT}" for a in addresses[: cell.servers]],
        "workers": [f"{a}:{WORKER_PORT}" for a in addresses[own_hosts:]],
    }
    started: list[HostProcess] = []
    try:
        for i, host in enumerate(cell.hosts):
            started.append(fork_on(network, host, process.main, limits.cores(i)))
        for group, message in (
            (started[:own_hosts], {"do": "serve"}),
            (started[own_hosts:], {"do": "train", "cell": asdict(cell), "batches": batches}),
        ):
            for i, each in enumerate(group):
                each.send({**message, **cluster, "index": i})
            for each in group:
                each.receive(START_SECONDS)
        yield started
    finally:
        for each in started:
            each.kill()


def _limit(network: Network, hosts: Sequence[HostProcess], cell: Cell, limits: Limits) -> None:
    """Limits the wire and the CPU time of all hosts, on the cores of this process."""
    for host in hosts:
        host.pin(os.sched_getaffinity(0))
    network.cap(cell.egress(limits.share))
    network.cap_cpu(limits.share, limits.quota_us)


def wait(
    workers: Sequence[HostProcess], calls: Sequence[Calls], needed: Sequence[int], seconds: float
) -> None:
    """Waits until each worker has done as many calls as needed."""
    deadline = time.monotonic() + seconds
    while True:
        fetch(workers, calls)
        done = [len(c) for c in calls]
        if all(d >= n for d, n in zip(done, needed, strict=True)):
            return
        if time.monotonic() > deadline:
            raise HostError(f"the workers have done {done} calls in {seconds:.0f} s, not {needed}")
        time.sleep(POLL_SECONDS)


def fetch(workers: Sequence[HostProcess], calls: Sequence[Calls]) -> bool:
    """Adds the new calls of each worker; returns whether all workers have ended."""
    ended = True
    for worker, known in zip(workers, calls, strict=True):
        worker.send({"do": "calls", "after": len(known)})
    for worker, known in zip(workers, calls, strict=True):
        answer = worker.receive(ANSWER_SECONDS)
        known.extend(map(tuple, answer["calls"]))
        ended = ended and answer["ended"]
    return ended
