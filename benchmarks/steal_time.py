"""Steal time: CPU time that the hypervisor gave to other virtual machines.

A measurement during which much time was stolen says little about the measured code, so benchmarks
repeat it. The kernel counts steal time in /proc/stat.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

MAX_FRACTION = 0.03  # of the cores' time that may be stolen in a turn that counts
MAX_TURN_FACTOR = 3  # at most this many times the requested turns are run
_STAT = Path("/proc/stat")
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")  # resolution of the counter


class StealTimeMonitor:
    """Measures the steal time from its creation on."""

    def __init__(self) -> None:
        self._start_time, self._start_stolen = time.perf_counter(), total_seconds()

    def undisturbed(self) -> bool:
        """Whether at most `MAX_FRACTION` of the cores' time, or one clock tick, was stolen."""
        cores = len(os.sched_getaffinity(0))
        allowed = MAX_FRACTION * cores * (time.perf_counter() - self._start_time)
        stolen = total_seconds() - self._start_stolen
        return stolen <= max(_TICK_SECONDS, allowed) * 1.001


def total_seconds() -> float:
    """Steal time of all cores since the machine started; 0 if the kernel does not count it."""
    if not _STAT.exists():
        return 0.0
    cpu = _STAT.read_text().split("\n", 1)[0].split()
    return int(cpu[8]) * _TICK_SECONDS if len(cpu) > 8 else 0.0
