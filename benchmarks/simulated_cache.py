"""Caches of rows, simulated in Python: the documented policy exactly, with and without sets."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

WAYS = 16
_EMPTY = -1


class SimulatedCache(Protocol):
    """A cache of rows."""

    def lookup(self, ids: Sequence[int]) -> int:
        """Uses rows.

        Args:
            ids: distinct ids, in the order of their first occurrence in a batch.

        Returns:
            How many were in the cache.
        """


def in_order(ids: np.ndarray) -> list[int]:
    """The distinct ids of a batch in the order of their first occurrence.

    Args:
        ids: integers [K].

    Returns:
        The ids.
    """
    unique, first = np.unique(ids, return_index=True)
    order: list[int] = unique[np.argsort(first)].tolist()
    return order


def hit_rate(cache: SimulatedCache, lookups: Sequence[Sequence[int]], warm: int) -> float:
    """The part of rows that a cache has.

    Args:
        cache: that is used.
        lookups: the distinct ids of each lookup.
        warm: lookups at the beginning that do not count.

    Returns:
        Hits divided by rows.
    """
    hits = [cache.lookup(ids) for ids in lookups]
    return sum(hits[warm:]) / max(1, sum(len(ids) for ids in lookups[warm:]))


class SetAssociative:
    """The cache of `layers.Tiered`: sets of 16 rows.

    The rows of a lookup that are in the cache are pinned first. Then each of the others takes a
    place of the set that a hash assigns to it: the first empty one, or that of the row that is not
    pinned and has the smallest use; of equal ones the first. If all rows of the set are pinned, it
    goes on to the next set. The use of a row is its last lookup ("lru"), or the number of lookups
    since it entered the cache and then its last lookup ("lfu").

    Args:
        num_rows: the number of rows of the cache; rounded up to a multiple of 16.
        policy: which row leaves.
    """

    def __init__(self, num_rows: int, policy: Literal["lru", "lfu"]) -> None:
        self._sets = -(-num_rows // WAYS)
        self._counts = policy == "lfu"
        self._ids = [[_EMPTY] * WAYS for _ in range(self._sets)]
        self._uses = [[(0, 0)] * WAYS for _ in range(self._sets)]
        self._places: dict[int, tuple[int, int]] = {}
        self._now = 0

    def lookup(self, ids: Sequence[int]) -> int:
        """See `SimulatedCache.lookup`."""
        self._now += 1
        missing = []
        for i in ids:
            if i in self._places:
                s, way = self._places[i]
                self._uses[s][way] = self._uses[s][way][0] + self._counts, self._now
            else:
                missing.append(i)
        for i in missing:
            s, way = self._choose(i)
            if self._ids[s][way] != _EMPTY:
                del self._places[self._ids[s][way]]
            self._ids[s][way] = i
            self._uses[s][way] = int(self._counts), self._now
            self._places[i] = s, way
        return len(ids) - len(missing)

    def _choose(self, i: int) -> tuple[int, int]:
        s = _mix64(i) * self._sets >> 64
        while True:
            if _EMPTY in self._ids[s]:
                return s, self._ids[s].index(_EMPTY)
            way = min(
                range(WAYS), key=lambda w: (self._uses[s][w][1] == self._now, self._uses[s][w])
            )
            if self._uses[s][way][1] != self._now:
                return s, way
            s = (s + 1) % self._sets


def _mix64(x: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mask = 2**64 - 1
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return x ^ x >> 31


class FullyAssociativeLru:
    """A cache from which the least recently used rows leave, except rows of the current lookup.

    Args:
        num_rows: the number of rows of the cache.
    """

    def __init__(self, num_rows: int) -> None:
        self._size = num_rows
        self._rows: OrderedDict[int, None] = OrderedDict()

    def lookup(self, ids: Sequence[int]) -> int:
        """See `SimulatedCache.lookup`."""
        hits = 0
        for i in ids:
            if i in self._rows:
                hits += 1
                self._rows.move_to_end(i)
        for i in ids:
            self._rows[i] = None
        while len(self._rows) > self._size:
            self._rows.popitem(last=False)
        return hits


class FullyAssociativeLfu:
    """A cache from which the rows with the fewest lookups leave; of several the least recent one.

    Args:
        num_rows: the number of rows of the cache.
    """

    def __init__(self, num_rows: int) -> None:
        self._size = num_rows
        self._uses: dict[int, tuple[int, int]] = {}  # id -> (lookups, the last one)
        self._heap: list[tuple[int, int, int]] = []
        self._now = 0

    def lookup(self, ids: Sequence[int]) -> int:
        """See `SimulatedCache.lookup`."""
        self._now += 1
        missing = []
        for i in ids:
            if i in self._uses:
                self._use(i, self._uses[i][0] + 1)
            else:
                missing.append(i)
        pinned = []
        leaving = len(self._uses) + len(missing) - self._size
        while leaving > 0:
            entry = count, last, i = heapq.heappop(self._heap)
            if self._uses.get(i) != (count, last):
                continue  # it was used later
            if last == self._now:
                pinned.append(entry)
            else:
                del self._uses[i]
                leaving -= 1
        for entry in pinned:
            heapq.heappush(self._heap, entry)
        for i in missing:
            self._use(i, 1)
        return len(ids) - len(missing)

    def _use(self, i: int, count: int) -> None:
        self._uses[i] = count, self._now
        heapq.heappush(self._heap, (count, self._now, i))


FULLY_ASSOCIATIVE = {"lru": FullyAssociativeLru, "lfu": FullyAssociativeLfu}
