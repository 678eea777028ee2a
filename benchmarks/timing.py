"""Interleaved timing in one process: noise and clock changes hit every contender alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

BURST_SECONDS = 0.2  # a fast contender runs several steps in its turn, as in training
MAX_BURST = 10
LEAD_IN_SECONDS = 1.0  # a longer call finds its caches within itself
Name = TypeVar("Name", bound=Hashable)
PAUSE_SECONDS = 0.005  # lets the previous contender's worker threads stop spinning


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median, and the quartiles that show how noisy it was."""

    median: float
    lower: float
    upper: float
    calls: int

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        """Summarizes calls."""
        lower, median, upper = np.quantile(seconds, [0.25, 0.5, 0.75])
        return Timing(float(median), float(lower), float(upper), len(seconds))


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

    Every contender walks through the same batches in the same order. In its turn a contender
    makes one call that is not timed (if it takes less than a second), then up to ten (as many as
    fit in 0.2 s), each timed by itself: as in a training loop they find their own working set in
    the caches, not the neighbour's.

    Args:
        runs: name -> call.
        batches: the batch indices to cycle through.
        rounds: turns of each contender, after one untimed round to warm up.
        seed: of the order.

    Returns:
        name -> seconds a call.
    """
    rng = np.random.default_rng(seed)
    names = list(runs)
    seconds: dict[Name, list[float]] = {name: [] for name in names}
    burst, lead_in, calls = {}, {}, dict.fromkeys(names, 0)

    def step(name: Name) -> float:
        batch = batches[calls[name] % len(batches)]
        calls[name] += 1
        return timed(lambda: runs[name](batch))

    for name in names:  # the first call may compile, the second tells how long one takes
        step(name)
        call = max(step(name), 1e-9)
        lead_in[name] = int(call < LEAD_IN_SECONDS)
        burst[name] = int(np.clip(BURST_SECONDS / call, 1, MAX_BURST))
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for i in rng.permutation(len(names)):
                time.sleep(PAUSE_SECONDS)
                name = names[i]
                turn = [step(name) for _ in range(lead_in[name] + burst[name])]
                seconds[name] += turn[lead_in[name] :]
    finally:
        if enabled:
            gc.enable()
    return {name: Timing.of(s) for name, s in seconds.items()}
