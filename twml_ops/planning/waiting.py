"""How long a step takes on hosts that wait for each other (see docs/plan.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

VISITS = 2  # of a step at a host: up to the products, and from their gradients on
_HALVINGS = 60


def cycle(workers: int, own: float, stations: Sequence[float]) -> float:
    """The mean time between two steps of one of several workers that share the servers.

    This is mean value analysis of a closed queueing network (Reiser and Lavenberg, "Mean-value
    analysis of closed multichain queueing networks", J. ACM 27(2), 1980).

    Args:
        workers: Number of workers.
        own: Seconds of a step on what a worker shares with no other worker.
        stations: Seconds of a step at each shared resource.
    """
    queues, seconds = [0.0] * len(stations), own
    for n in range(1, workers + 1):
        at_stations = [s * (1 + q) for s, q in zip(stations, queues, strict=True)]
        seconds = own + sum(at_stations)
        queues = [n * t / seconds if seconds else 0.0 for t in at_stations]
    return seconds


def saved_by_bursts(visit: float, cores: float, burst: float, busy: float, step: float) -> float:
    """How much sooner than with a slow core a host with a quota ends its part of a step.

    Such a host has whole cores until it has used its quota, and waits for the next period then. A
    host that has been idle has all of its quota when work arrives, and one that is always busy has
    none. In between, it has it with the probability that it is idle.

    Args:
        visit: Seconds of CPU time that this part takes, on one core.
        cores: Cores of the host, less than 1; nothing is saved with 1 or more.
        burst: Seconds of CPU time that an idle host has at full speed.
        busy: Seconds of CPU time of the host in a step.
        step: The duration of a step, in seconds.
    """
    if cores >= 1 or not burst:
        return 0.0
    idle = max(0.0, 1.0 - busy / (cores * step)) if step else 0.0
    return idle * VISITS * min(visit / VISITS, burst) * (1 / cores - 1)


def consistent(duration: Callable[[float], float]) -> float:
    """The duration of a step in which hosts are as busy as in steps of this duration.

    Args:
        duration: The duration if hosts are as busy as in steps of some duration, which does not
            increase with it; 0 means hosts that are never idle.
    """
    low, high = 0.0, duration(0.0)
    if duration(high) == high:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if duration(middle) > middle else (low, middle)
    return high
