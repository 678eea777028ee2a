"""Interleaved timing in one process: noise and clock changes affect all contenders alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from benchmarks import steal_time

TURN_SECONDS = 0.2  # a fast contender makes several calls in its turn, as in training
MAX_CALLS_PER_TURN = 10
WARM_UP_LIMIT_SECONDS = 1.0  # longer calls need no warm-up: the state of the caches hardly matters
PAUSE_SECONDS = 0.005  # in which the worker threads of the previous contender stop spinning
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """Seconds per call.

    Attributes:
        median: the median of the calls that count.
        lower: first quartile.
        upper: third quartile.
        calls: number of calls that count.
        disturbed: number of turns with steal time (see `benchmarks.steal_time`). They are left out
            unless there are no others.
        cpu: CPU seconds of all threads of the process, median of the turns.
    """

    median: float
    lower: float
    upper: float
    calls: int
    disturbed: int = 0
    cpu: float = float("nan")

    @staticmethod
    def of(
        seconds: Sequence[float], disturbed: int = 0, cpu_seconds: Sequence[float] = ()
    ) -> Timing:
        """The quartiles of the calls.

        Args:
            seconds: the seconds of each call.
            disturbed: number of turns with steal time.
            cpu_seconds: CPU seconds per call of each turn.
        """
        lower, median, upper = np.quantile(seconds, [0.25, 0.5, 0.75])
        cpu = float(np.median(cpu_seconds)) if cpu_seconds else float("nan")
        return Timing(float(median), float(lower), float(upper), len(seconds), disturbed, cpu)


class Turns:
    """The turns of one contender: undisturbed ones and those with steal time."""

    def __init__(self) -> None:
        self._counting: list[list[float]] = []
        self._disturbed: list[list[float]] = []
        self._cpu: dict[bool, list[float]] = {True: [], False: []}

    def add(
        self, seconds: list[float], undisturbed: bool, cpu_seconds: float | None = None
    ) -> None:
        """Adds a turn.

        Args:
            seconds: the seconds of each call in the turn.
            undisturbed: whether there was no steal time to speak of.
            cpu_seconds: per call, if they were measured.
        """
        (self._counting if undisturbed else self._disturbed).append(seconds)
        if cpu_seconds is not None:
            self._cpu[undisturbed].append(cpu_seconds)

    @property
    def counting(self) -> int:
        """Number of undisturbed turns."""
        return len(self._counting)

    def complete(self, rounds: int) -> bool:
        """Whether `rounds` turns are undisturbed, or the maximum number of turns is reached."""
        total = self.counting + len(self._disturbed)
        return self.counting >= rounds or total >= steal_time.MAX_TURN_FACTOR * rounds

    def __add__(self, other: Turns) -> Turns:
        both = Turns()
        both._counting = self._counting + other._counting
        both._disturbed = self._disturbed + other._disturbed
        both._cpu = {k: self._cpu[k] + other._cpu[k] for k in self._cpu}
        return both

    def timing(self) -> Timing:
        """The timing of the undisturbed turns, or of all turns if none is undisturbed."""
        turns = self._counting or self._disturbed
        cpu = self._cpu[bool(self._counting)]
        return Timing.of([s for turn in turns for s in turn], len(self._disturbed), cpu)


def timed(call: Callable[[], object]) -> float:
    """Calls `call` once; returns the seconds that it took."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleave(
    runs: Mapping[Name, Callable[[int], object]],
    batches: Sequence[int],
    *,
    rounds: int,
    seed: int = 0,
) -> dict[Name, Timing]:
    """Times `run(batch index)` of every contender in interleaved turns.

    Each round gives every contender one turn, in random order. All contenders process the same
    batches in the same order. If a call takes less than a second, a contender has processed each
    batch once before the first round, and starts every turn with a call that is not timed. A turn
    then has up to ten timed calls, as many as fit in 0.2 s. As in a training loop, these calls find
    their own data in the caches, not the data of another contender. Turns with steal time do not
    count and are repeated in further rounds, of which there are at most twice as many as requested.

    Args:
        runs: name -> call.
        batches: batch indices, which are used cyclically.
        rounds: turns of each contender that should count.
        seed: the seed of the random order.

    Returns:
        name -> seconds per call, and CPU seconds.
    """
    rng = np.random.default_rng(seed)
    names = list(runs)
    turns = {name: Turns() for name in names}
    timed_calls, warm_up_calls, calls = {}, {}, dict.fromkeys(names, 0)

    def step(name: Name) -> float:
        batch = batches[calls[name] % len(batches)]
        calls[name] += 1
        return timed(lambda: runs[name](batch))

    for name in names:
        step(name)  # may compile
        seconds = step(name)
        # The first step on a batch may write memory pages of the slots for the first time.
        for _ in batches[2:] if seconds < WARM_UP_LIMIT_SECONDS else ():
            seconds = step(name)
        seconds = max(seconds, 1e-9)
        warm_up_calls[name] = int(seconds < WARM_UP_LIMIT_SECONDS)
        timed_calls[name] = int(np.clip(TURN_SECONDS / seconds, 1, MAX_CALLS_PER_TURN))
    enabled = gc.isenabled()
    gc.disable()
    try:
        while remaining := [name for name in names if not turns[name].complete(rounds)]:
            for i in rng.permutation(len(remaining)):
                time.sleep(PAUSE_SECONDS)
                name = remaining[i]
                monitor = steal_time.StealTimeMonitor()
                for _ in range(warm_up_calls[name]):
                    step(name)
                cpu = time.process_time()
                turn = [step(name) for _ in range(timed_calls[name])]
                cpu = (time.process_time() - cpu) / len(turn)
                turns[name].add(turn, monitor.undisturbed(), cpu)
    finally:
        if enabled:
            gc.enable()
    return {name: t.timing() for name, t in turns.items()}
