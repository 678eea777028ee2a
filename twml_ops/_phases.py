"""The phases of a training and their wall times.

`with phase(name):` marks code of any package as a phase. The current `Phases` records its time;
without one, nothing is recorded.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import time
from collections.abc import Callable, Iterator

_current: contextvars.ContextVar[Phases | None] = contextvars.ContextVar("phases", default=None)
_imported = time.perf_counter()


class Phases:
    """Records phases. A phase within a phase counts for itself, not for the one around it.

    Args:
        on_end: called at the end of each phase with its name and its seconds.
        start: start of the command, on the clock of `time.perf_counter`; None: now. The time from
            then until now is the phase "start".

    Attributes:
        seconds: duration of each phase by name, in the order of their ends. Phases with one name,
            such as the trainings of the members of an ensemble, are added.
    """

    def __init__(
        self, on_end: Callable[[str, float], object] = lambda name, seconds: None,
        start: float | None = None,
    ) -> None:  # fmt: skip
        now = time.perf_counter()
        self._on_end, self._start = on_end, now if start is None else start
        self._within = [0.0]  # seconds of the phases in each open phase
        self._whole = False
        self.seconds: dict[str, float] = {}
        if start is not None:
            self._end("start", now - start)

    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Makes these phases current in its block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextlib.contextmanager
    def run(self, name: str, whole: bool) -> Iterator[None]:
        """A phase; see `phase`. One that fails is not recorded."""
        if self._whole:
            yield
            return
        start = time.perf_counter()
        self._within.append(0.0)
        self._whole = whole
        try:
            yield
        finally:
            within = self._within.pop()
            seconds = time.perf_counter() - start
            self._within[-1] += seconds
            self._whole = False
        self._end(name, seconds - within)

    def _end(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._on_end(name, seconds)


@contextlib.contextmanager
def phase(name: str, whole: bool = False) -> Iterator[None]:
    """A phase of the current training.

    Args:
        name: what is done.
        whole: phases within it are parts of it and are not told apart.
    """
    current = _current.get()
    if current is None:
        yield
        return
    with current.run(name, whole):
        yield


def process_start() -> float:
    """The start of this process, on the clock of `time.perf_counter`.

    Where the system does not tell it, the first import of this module.
    """
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return _imported
    return min(time.perf_counter() - max(age, 0.0), _imported)
