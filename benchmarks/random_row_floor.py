"""The second floor: the time of the same bytes, moved as random rows instead of a stream.

The distinct rows of a batch are read, or read and written, in the order of their ids with prefetch
and no other work (`random_rows.cc`). The bandwidth found replaces that of a stream where
`bandwidth_floor` counts rows of the table and of the slots.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.bandwidth_floor import Bandwidth
from benchmarks.workload import Batch

READ, UPDATE = "random rows read", "random rows read and written"
SOURCE = Path(__file__).with_name("random_rows.cc")
_FLOATS = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
_IDS = np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS")


class RandomRowProbe:
    """Measures the bandwidth of random rows.

    Args:
        table: float32 [N, D]. Its rows are multiplied by 1, so they do not change.
        batches: batches whose distinct ids are the rows.
        threads: number of threads; each has a range of ids.
    """

    def __init__(self, table: np.ndarray, batches: Sequence[Batch], threads: int) -> None:
        self._library = _compiled()
        self._table = table
        self._parts = [np.array_split(np.unique(batch.ids), threads) for batch in batches]
        self._sums = [np.zeros(table.shape[1], np.float32) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)  # ctypes releases the GIL during a call

    def runs(self) -> dict[str, Callable[[int], object]]:
        """The two passes over the rows of a batch, as contenders of `timing.interleave`."""
        return {READ: self._read, UPDATE: self._update}

    def bandwidth(
        self, batches: Sequence[int], read_seconds: float, update_seconds: float
    ) -> Bandwidth:
        """Converts the times of the two passes, in seconds, to bandwidths.

        Args:
            batches: indices of the batches that were timed.
            read_seconds: seconds per batch of the reading pass.
            update_seconds: seconds per batch of the updating pass.
        """
        rows = np.mean([sum(len(part) for part in self._parts[i]) for i in batches])
        size = float(rows) * self._table.shape[1] * self._table.itemsize
        return Bandwidth(size / read_seconds, 2 * size / update_seconds)

    def _read(self, batch: int) -> object:
        def part(ids: np.ndarray, total: np.ndarray) -> None:
            self._library.read(self._table, ids, len(ids), len(total), total)

        return list(self._pool.map(part, self._parts[batch], self._sums))

    def _update(self, batch: int) -> object:
        def part(ids: np.ndarray) -> None:
            self._library.update(self._table, ids, len(ids), self._table.shape[1], 1.0)

        return list(self._pool.map(part, self._parts[batch]))


class _Library(NamedTuple):
    """The functions of `random_rows.cc`."""

    read: Callable[..., None]
    update: Callable[..., None]


def _compiled() -> _Library:
    """Compiles the loops for this machine, with $CXX or g++."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "random_rows.so")
        compiler = os.environ.get("CXX", "g++").split()
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([*compiler, *flags, str(SOURCE), "-o", path], check=True)
        library = ctypes.CDLL(path)
    sizes = [ctypes.c_int64, ctypes.c_int64]
    library.ReadRows.argtypes = [_FLOATS, _IDS, *sizes, _FLOATS]
    library.UpdateRows.argtypes = [_FLOATS, _IDS, *sizes, ctypes.c_float]
    library.ReadRows.restype = library.UpdateRows.restype = None
    return _Library(library.ReadRows, library.UpdateRows)
