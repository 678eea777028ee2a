"""Time that the hypervisor gave to somebody else, in which nothing here could run."""

from __future__ import annotations

import os
import time
from pathlib import Path

LIMIT = 0.03  # of the cores' time in a turn that counts
MOST_TURNS = 3  # times as many as asked for, where too few of them count
_STAT = Path("/proc/stat")
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # the kernel counts in these


class Watch:
    """Looks at a turn, from its making on."""

    def __init__(self) -> None:
        self._start, self._stolen = time.perf_counter(), seconds()

    def undisturbed(self) -> bool:
        """Whether no more than `LIMIT` of the cores' time since then was stolen, or one tick."""
        cores = len(os.sched_getaffinity(0))
        allowed = LIMIT * cores * (time.perf_counter() - self._start)
        return seconds() - self._stolen <= max(_TICK, allowed) * 1.001


def seconds() -> float:
    """Stolen since the machine started, of all cores together; 0 where no kernel counts it."""
    if not _STAT.exists():
        return 0.0
    cpu = _STAT.read_text().split("\n", 1)[0].split()
    return int(cpu[8]) * _TICK if len(cpu) > 8 else 0.0
