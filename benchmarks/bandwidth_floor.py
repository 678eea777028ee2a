"""Lower bound of the time of a step: the bytes that it must move, divided by memory bandwidth.

The bandwidth is measured in the same run as the contenders.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.workload import Batch

READ, UPDATE = "memory read", "memory read and write"
FLOATS_PER_ROW: dict[str, Callable[[int], int]] = {  # rule -> floats of weights and slots per row
    "sgd": lambda dim: dim,
    "adagrad": lambda dim: 2 * dim,
    "rowwise_adagrad": lambda dim: dim + 1,
    "lazy_adam": lambda dim: 3 * dim,
}


@dataclass(frozen=True)
class Bandwidth:
    """Memory bandwidth in bytes per second.

    Attributes:
        read: of reading.
        update: of reading and writing back in place; both directions are counted.
    """

    read: float
    update: float


class BandwidthProbe:
    """Measures memory bandwidth with passes over an array far larger than the caches.

    Args:
        threads: number of threads; each passes over its part of the array.
        megabytes: size of the array in MiB.
    """

    def __init__(self, threads: int, megabytes: int = 512) -> None:
        data = np.ones(megabytes * 2**18, np.float32)
        self._parts = np.array_split(data, threads)
        self._pool = ThreadPoolExecutor(threads)  # NumPy releases the GIL in these loops
        self.bytes = data.nbytes

    def runs(self) -> dict[str, Callable[[int], object]]:
        """The reading pass and the updating pass, as contenders of `timing.interleave`."""
        one = np.float32(1)
        return {
            READ: lambda _: list(self._pool.map(np.max, self._parts)),
            UPDATE: lambda _: list(
                self._pool.map(lambda part: np.multiply(part, one, out=part), self._parts)
            ),
        }

    def bandwidth(self, read_seconds: float, update_seconds: float) -> Bandwidth:
        """Converts the times of the two passes, in seconds, to bandwidths."""
        return Bandwidth(self.bytes / read_seconds, 2 * self.bytes / update_seconds)


def forward_seconds(
    batch: Batch, dim: int, bandwidth: Bandwidth, rows: Bandwidth | None = None
) -> float:
    """Lower bound of a forward pass, in seconds.

    The pass reads ids, values, offsets and each distinct row, and writes the output. A row that
    several examples share counts once, because it is in a cache the second time.

    Args:
        batch: the batch.
        dim: columns of the table.
        bandwidth: the bandwidth of the memory.
        rows: of the rows of the table; None: that of the memory.
    """
    rows = rows or bandwidth
    seconds = 4 * dim * batch.unique / rows.read + _entry_bytes(batch) / bandwidth.read
    return seconds + 4 * dim * batch.num_rows / bandwidth.update


def step_seconds(
    batch: Batch, dim: int, rule: str, bandwidth: Bandwidth, rows: Bandwidth | None = None
) -> float:
    """Lower bound of a training step, in seconds.

    After the forward pass, a step reads the entries again and the gradient of the output, and reads
    and writes the weights and slots of each distinct row.

    Args:
        batch: the batch.
        dim: columns of the table.
        rule: the optimizer, a key of FLOATS_PER_ROW.
        bandwidth: the bandwidth of the memory.
        rows: of the rows of the table and of its slots; None: that of the memory.
    """
    rows = rows or bandwidth
    read = 4 * dim * batch.num_rows + _entry_bytes(batch)
    update = 2 * 4 * FLOATS_PER_ROW[rule](dim) * batch.unique
    forward = forward_seconds(batch, dim, bandwidth, rows)
    return forward + read / bandwidth.read + update / rows.update


def _entry_bytes(batch: Batch) -> int:
    return batch.ids.nbytes + batch.values.nbytes + batch.row_splits.nbytes
