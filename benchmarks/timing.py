"""Interleaved timing in one process: noise and clock changes hit every contender alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from benchmarks import stolen

BURST_SECONDS = 0.2  # a fast contender runs several steps in its turn, as in training
MAX_BURST = 10
LEAD_IN_SECONDS = 1.0  # a longer call finds its caches within itself
Name = TypeVar("Name", bound=Hashable)
PAUSE_SECONDS = 0.005  # lets the previous contender's worker threads stop spinning


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median, and the quartiles that show how noisy it was.

    Attributes:
        median: of the calls that count.
        lower: quartile.
        upper: quartile.
        calls: that count.
        disturbed: turns in which the hypervisor took time away (see `benchmarks.stolen`); left out,
            unless there are no others.
    """

    median: float
    lower: float
    upper: float
    calls: int
    disturbed: int = 0

    @staticmethod
    def of(seconds: Sequence[float], disturbed: int = 0) -> Timing:
        """Summarizes calls."""
        lower, median, upper = np.quantile(seconds, [0.25, 0.5, 0.75])
        return Timing(float(median), float(lower), float(upper), len(seconds), disturbed)


class Turns:
    """The turns of one contender: those that count, and those that somebody disturbed."""

    def __init__(self) -> None:
        self._counting: list[list[float]] = []
        self._disturbed: list[list[float]] = []

    def add(self, seconds: list[float], undisturbed: bool) -> None:
        """One more, of so many calls."""
        (self._counting if undisturbed else self._disturbed).append(seconds)

    @property
    def counting(self) -> int:
        """How many count."""
        return len(self._counting)

    def enough(self, rounds: int) -> bool:
        """Whether so many count, or there is no hope that they will."""
        made = self.counting + len(self._disturbed)
        return self.counting >= rounds or made >= stolen.MOST_TURNS * rounds

    def __add__(self, other: Turns) -> Turns:
        both = Turns()
        both._counting = self._counting + other._counting
        both._disturbed = self._disturbed + other._disturbed
        return both

    def timing(self) -> Timing:
        """Of those that count, or of all where none does."""
        turns = self._counting or self._disturbed
        return Timing.of([s for turn in turns for s in turn], len(self._disturbed))


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes."""
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
    """Times `run(batch index)` of every contender, all in each round, in random order.

    Every contender walks through the same batches in the same order, and has taken each once before
    anything is timed (if a call takes less than a second). In its turn a contender makes one call
    that is not timed (if it takes less than a second), then up to ten (as many as fit in 0.2 s),
    each timed by itself: as in a training loop they find their own working set in the caches, not
    the neighbour's. A turn in which the hypervisor took time away is left out and made up for in a
    further round, of which there are at most twice as many again.

    Args:
        runs: name -> call.
        batches: the batch indices to cycle through.
        rounds: turns of each contender that are to count, after one untimed to warm up.
        seed: of the order.

    Returns:
        name -> seconds a call.
    """
    rng = np.random.default_rng(seed)
    names = list(runs)
    turns = {name: Turns() for name in names}
    burst, lead_in, calls = {}, {}, dict.fromkeys(names, 0)

    def step(name: Name) -> float:
        batch = batches[calls[name] % len(batches)]
        calls[name] += 1
        return timed(lambda: runs[name](batch))

    for name in names:  # the first call may compile, the last tells how long one takes
        step(name)
        call = step(name)
        # The pages of a table's slots are first written in a batch's first step.
        for _ in batches[2:] if call < LEAD_IN_SECONDS else ():
            call = step(name)
        call = max(call, 1e-9)
        lead_in[name] = int(call < LEAD_IN_SECONDS)
        burst[name] = int(np.clip(BURST_SECONDS / call, 1, MAX_BURST))
    enabled = gc.isenabled()
    gc.disable()
    try:
        while left := [name for name in names if not turns[name].enough(rounds)]:
            for i in rng.permutation(len(left)):
                time.sleep(PAUSE_SECONDS)
                name = left[i]
                watch = stolen.Watch()
                turn = [step(name) for _ in range(lead_in[name] + burst[name])]
                turns[name].add(turn[lead_in[name] :], watch.undisturbed())
    finally:
        if enabled:
            gc.enable()
    return {name: t.timing() for name, t in turns.items()}
