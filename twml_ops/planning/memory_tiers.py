"""Divides memory among tables: which of them stay in it, and which are in a file behind a cache.

The profile that decides is that of MTrainS ("MTrainS: Improving DLRM training efficiency using
heterogeneous memories", arXiv:2305.01515): the bandwidth that a table needs and the locality of its
accesses. The hit rates assume a cache that drops the least recently used rows, for each size.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class TableDemand:
    """The accesses of a training to one table.

    Attributes:
        name: the name of the table.
        rows: the number of rows of the table.
        row_bytes: the bytes of a row with its slots.
        reads_per_second: rows that are read; as many are written.
        least_rows: rows that a cache must hold at least, which are the rows of one step.
        sizes: int64 [S], ascending numbers of rows in a cache.
        hit_rates: float64 [S], the share of the reads that a cache of that size serves.
    """

    name: str
    rows: int
    row_bytes: int
    reads_per_second: float
    least_rows: int
    sizes: npt.NDArray[np.int64]
    hit_rates: npt.NDArray[np.float64]

    @property
    def bytes(self) -> int:
        """Size of the whole table."""
        return self.rows * self.row_bytes


@dataclasses.dataclass(frozen=True)
class TierChoice:
    """The place of a table.

    Attributes:
        name: the name of the table.
        in_memory: whether the whole table is in memory; otherwise it is in a file.
        cached_rows: rows in memory.
        bytes: memory that the table takes.
        hit_rate: share of the reads that memory serves; 1 if the whole table is there.
        misses_per_second: rows that are read from the file.
    """

    name: str
    in_memory: bool
    cached_rows: int
    bytes: int
    hit_rate: float
    misses_per_second: float


def choose_tiers(tables: Sequence[TableDemand], memory: int) -> list[TierChoice]:
    """Divides memory among tables so that it serves as many reads as possible.

    Each table begins with a cache for the rows of one step. Then memory goes to the table whose
    reads gain most for a byte, along the upper concave hull of its hit-rate curve. The last point
    of a curve is the whole table in memory, which serves all reads, first ones included. For
    concave curves this greedy division is optimal up to one step of a curve.

    Args:
        tables: the tables.
        memory: bytes for all of them.

    Returns:
        The choice for each table, in their order.

    Raises:
        ValueError: `memory` does not hold the rows of one step.
    """
    curves = [_curve(table) for table in tables]
    hulls = [_upper_hull(sizes, served) for sizes, served in curves]
    least = sum(int(hull[0][0]) for hull in hulls)
    if least > memory:
        raise ValueError(
            f"memory must hold the rows of one step of all tables, {least:,} bytes, got {memory:,}"
        )
    at, left = [0] * len(tables), memory - least
    waiting: list[tuple[float, int]] = []

    def offer(i: int) -> None:
        if at[i] + 1 < len(hulls[i]):
            (size, served), (more, gain) = hulls[i][at[i]], hulls[i][at[i] + 1]
            heapq.heappush(waiting, (-(gain - served) / (more - size), i))

    for i in range(len(tables)):
        offer(i)
    while waiting:
        _, i = heapq.heappop(waiting)
        cost = int(hulls[i][at[i] + 1][0] - hulls[i][at[i]][0])
        if cost <= left:  # a table whose next step does not fit keeps what it has
            left -= cost
            at[i] += 1
            offer(i)
    return [
        _choice(table, int(hull[k][0]), hull[k][1])
        for table, hull, k in zip(tables, hulls, at, strict=True)
    ]


def _choice(table: TableDemand, size: int, served: float) -> TierChoice:
    whole = size >= table.bytes
    rate = served / table.reads_per_second if table.reads_per_second else 1.0
    return TierChoice(
        table.name,
        whole,
        size // max(table.row_bytes, 1),
        size,
        rate,
        0.0 if whole else table.reads_per_second - served,
    )


def _curve(table: TableDemand) -> tuple[list[int], list[float]]:
    """Bytes of memory, and the reads a second that they serve."""
    least = min(table.least_rows, table.rows)
    inner = (table.sizes > least) & (table.sizes < table.rows)
    at_least = float(np.interp(least, table.sizes, table.hit_rates)) if len(table.sizes) else 0.0
    rows = [least, *table.sizes[inner].tolist()]
    rates = [at_least, *table.hit_rates[inner].tolist()]
    if least < table.rows:
        rows.append(table.rows)
        rates.append(1.0)
    else:
        rates[0] = 1.0
    return [n * table.row_bytes for n in rows], [r * table.reads_per_second for r in rates]


def _upper_hull(sizes: Sequence[int], served: Sequence[float]) -> list[tuple[int, float]]:
    """The points of the smallest concave function above a curve (Andrew's monotone chain)."""
    hull: list[tuple[int, float]] = []
    for x, y in zip(sizes, served, strict=True):
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            hull.pop()
        if not hull or y > hull[-1][1]:
            hull.append((x, y))
    return hull
