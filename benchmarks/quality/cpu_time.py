"""CPU time, which other programs on the machine hardly change."""

import os


def cpu_seconds() -> float:
    """Seconds of all threads of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
