"""The floor: the bytes a step must move, over the memory bandwidth measured in the same run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.workload import Batch

READ, UPDATE = "memory read", "memory read and write"
FLOATS_PER_ROW: dict[str, Callable[[int], int]] = {  # of a row's weights and slots
    "sgd": lambda dim: dim,
    "adagrad": lambda dim: 2 * dim,
    "rowwise_adagrad": lambda dim: dim + 1,
    "lazy_adam": lambda dim: 3 * dim,
}


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second: reading, and reading and writing back in place (both ways counted)."""

    read: float
    update: float


class Probe:
    """Streams through an array far larger than the caches, a part a thread."""

    def __init__(self, threads: int, megabytes: int = 512) -> None:
        data = np.ones(megabytes * 2**18, np.float32)
        self._parts = np.array_split(data, threads)
        self._pool = ThreadPoolExecutor(threads)  # NumPy releases the GIL in these loops
        self.bytes = data.nbytes

    def runs(self) -> dict[str, Callable[[int], object]]:
        """The two passes, as contenders of `timing.interleave`."""
        one = np.float32(1)
        return {
            READ: lambda _: list(self._pool.map(np.max, self._parts)),
            UPDATE: lambda _: list(
                self._pool.map(lambda part: np.multiply(part, one, out=part), self._parts)
            ),
        }

    def bandwidth(self, read_seconds: float, update_seconds: float) -> Bandwidth:
        """What the passes' times mean."""
        return Bandwidth(self.bytes / read_seconds, 2 * self.bytes / update_seconds)


def forward_seconds(batch: Batch, dim: int, bandwidth: Bandwidth) -> float:
    """Ids, values, offsets and each distinct row read once; the output written once.

    Rows that many examples share are counted once: they are in a cache the second time.
    """
    read = 4 * dim * batch.unique + _entry_bytes(batch)
    return read / bandwidth.read + 4 * dim * batch.num_rows / bandwidth.update


def step_seconds(batch: Batch, dim: int, rule: str, bandwidth: Bandwidth) -> float:
    """The forward, then the entries and the output's gradient read again, and each distinct row's
    weights and slots read and written once.
    """
    read = 4 * dim * batch.num_rows + _entry_bytes(batch)
    update = 2 * 4 * FLOATS_PER_ROW[rule](dim) * batch.unique
    return (
        forward_seconds(batch, dim, bandwidth) + read / bandwidth.read + update / bandwidth.update
    )


def _entry_bytes(batch: Batch) -> int:
    return batch.ids.nbytes + batch.values.nbytes + batch.row_splits.nbytes
