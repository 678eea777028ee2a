"""Divides many tables over servers so that the slowest server is as fast as possible."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from twml_ops.planning.cpu_costs import CpuCosts
from twml_ops.planning.job import ClusterResources, Job, Table
from twml_ops.planning.sharding_axis import TYPICAL_COSTS
from twml_ops.planning.sharding_costs import Placed, placements
from twml_ops.planning.sharding_plan import TABLE, WAYS, ShardedTable, ShardingPlan

_GAIN = 1e-9  # the share of the seconds by which a change must improve them


def shard(
    job: Job,
    cluster: ClusterResources,
    costs: CpuCosts = TYPICAL_COSTS,
    *,
    memory: float | None = None,
    ways: Sequence[str] = WAYS,
) -> ShardingPlan:
    """Chooses for each table the way to divide it, and the servers.

    A greedy assignment in the order of descending cost, one for each way alone, and one by largest
    differencing (Karmarkar and Karp, 1982) are improved by changing one or two tables until no
    change makes the slowest server faster. The best result is returned, the same in each call.

    Args:
        job: The model and its batches.
        cluster: The hosts; each of `servers` is one, which may also be the host of a worker.
        costs: What the parts of a step cost.
        memory: Bytes that a server can hold, tables with slots; None: no limit. On the host of a
            worker they include the worker's copies of replicated tables.
        ways: Which of `WAYS` to use. "replicated" is for tables with at most as many rows as a
            batch has examples.

    Returns:
        The plan.

    Raises:
        ValueError: A way is unknown, no way is possible for a table, `memory` is not positive,
            there are more servers than the workers that run them, or no plan was found that fits.
    """
    unknown = [w for w in ways if w not in WAYS]
    if unknown or not ways:
        raise ValueError(f"ways must be some of {', '.join(WAYS)}; got {list(ways)!r:.200}")
    if memory is not None and not memory > 0:
        raise ValueError(f"memory must be positive, got {memory}")
    options = [placements(t, job, cluster, costs, ways) for t in job.tables]
    for i, (table, found) in enumerate(zip(job.tables, options, strict=True)):
        if not found:
            raise ValueError(_cannot_be_divided(i, table, cluster, ways))
    search = _Search(options, np.inf if memory is None else memory)
    starts = [search.greedy(None)] + [search.greedy(w) for w in ways]
    if TABLE in ways:
        starts.append(search.differencing())
    best = min((search.improved(s) for s in starts), key=search.value)
    if search.value(best)[0] > 0:
        raise ValueError(_what_binds(job, options, cluster.servers, search.memory))
    chosen = [o[i] for o, i in zip(options, best, strict=True)]
    return _plan([ShardedTable(p.way, p.first) for p in chosen], search.load(best))


def predict_plan(
    tables: Sequence[ShardedTable],
    job: Job,
    cluster: ClusterResources,
    costs: CpuCosts = TYPICAL_COSTS,
) -> ShardingPlan:
    """Predicts what any division of the tables needs on each server.

    Args:
        tables: For each table of the job its way and its first server.
        job: The model and its batches.
        cluster: The hosts; each of `servers` is one.
        costs: What the parts of a step cost.

    Returns:
        The plan with these tables. The largest of its `seconds` are predicted for a step.

    Raises:
        ValueError: There are more or fewer `tables` than the job has, a table cannot be divided in
            its way, or there is no server `first`.
    """
    if len(tables) != len(job.tables):
        raise ValueError(f"tables must be the {len(job.tables)} of the job, got {len(tables)}")
    load = np.zeros(2 * cluster.servers)
    for i, (place, table) in enumerate(zip(tables, job.tables, strict=True)):
        if not 0 <= place.first < cluster.servers:
            raise ValueError(
                f"first of table {i} must be 0 to {cluster.servers - 1}, got {place.first}"
            )
        found = placements(table, job, cluster, costs, [place.way])
        if not found:
            raise ValueError(_cannot_be_divided(i, table, cluster, [place.way]))
        chosen = found[place.first % len(found)]  # one is listed if the servers are equal
        load += chosen.seconds + chosen.bytes
    return _plan(tables, load)


class _Search:
    """Assignments: for each table the index of one of its placements."""

    def __init__(self, options: Sequence[Sequence[Placed]], memory: float) -> None:
        self.options, self.memory = options, memory
        self.servers = len(options[0][0].seconds)
        self.loads = [np.array([p.seconds + p.bytes for p in o]) for o in options]
        self.begins = np.cumsum([0, *(len(x) for x in self.loads)]).tolist()
        costs = [float(x[:, : self.servers].max(axis=1).min()) for x in self.loads]
        self.order = sorted(range(len(options)), key=lambda i: (-costs[i], i))

    def load(self, chosen: Sequence[int]) -> np.ndarray:
        """Seconds and then bytes by server."""
        return np.sum([x[i] for x, i in zip(self.loads, chosen, strict=True)], axis=0)

    def value(self, chosen: Sequence[int]) -> tuple[float, float, float]:
        """Bytes over the limit, seconds of the slowest server, and how uneven they are."""
        excess, slowest, squares = self._values(self.load(chosen)[None])
        return float(excess[0]), float(slowest[0]), float(squares[0])

    def greedy(self, way: str | None) -> list[int]:
        """Adds tables in the order of descending cost, by one way where it is possible."""
        chosen, load = [0] * len(self.options), np.zeros(2 * self.servers)
        for i in self.order:
            allowed = [k for k, p in enumerate(self.options[i]) if way in (None, p.way)]
            allowed = allowed or list(range(len(self.options[i])))
            k = allowed[self._best(load + self.loads[i][allowed])]
            chosen[i], load = k, load + self.loads[i][k]
        return chosen

    def differencing(self) -> list[int]:
        """Combines the two most uneven partial assignments of whole tables, until one is left."""
        heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
        for i, of_table in enumerate(self.loads):
            whole = [k for k, p in enumerate(self.options[i]) if p.way == TABLE]
            size = float(of_table[whole[0], : self.servers].max())
            empty: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(self.servers - 1)]
            heap.append((-size, i, [(size, [i]), *empty]))
        heapq.heapify(heap)
        while len(heap) > 1:
            (_, i, a), (_, _, b) = heapq.heappop(heap), heapq.heappop(heap)
            b.reverse()
            joined = [(x + y, p + q) for (x, p), (y, q) in zip(a, b, strict=True)]
            joined.sort(key=lambda part: (-part[0], part[1]))
            heapq.heappush(heap, (joined[-1][0] - joined[0][0], i, joined))
        chosen = [0] * len(self.options)
        for server, (_, tables) in enumerate(heap[0][2]):
            for i in tables:
                whole = [k for k, p in enumerate(self.options[i]) if p.way == TABLE]
                chosen[i] = whole[min(server, len(whole) - 1)]
        return chosen

    def improved(self, start: list[int]) -> list[int]:
        """Changes one or two tables until no change helps."""
        chosen = list(start)
        while any(self._change(chosen, i) for i in self.order):
            pass
        return chosen

    def _change(self, chosen: list[int], i: int) -> bool:
        """Changes a table, and another one if that helps more; whether the plan is better now."""
        changes = np.concatenate([x - x[k] for x, k in zip(self.loads, chosen, strict=True)])
        changes[self.begins[i] : self.begins[i + 1]] = 0  # no other table
        one = self.load(chosen) - self.loads[i][chosen[i]] + self.loads[i]
        both = one[:, None] + changes[None]
        k, change = divmod(self._best(both.reshape(-1, 2 * self.servers)), len(changes))
        new = list(chosen)
        j = int(np.searchsorted(self.begins, change, "right")) - 1
        if j != i:
            new[j] = change - self.begins[j]
        new[i] = k
        if not _better(self.value(new), self.value(chosen)):
            return False
        chosen[:] = new
        return True

    def _best(self, loads: np.ndarray) -> int:
        excess, slowest, squares = self._values(loads)
        best = excess == excess.min()
        best &= slowest == slowest[best].min()
        return int(np.where(best, squares, np.inf).argmin())

    def _values(self, loads: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        seconds, stored = loads[:, : self.servers], loads[:, self.servers :]
        over = np.maximum(stored - self.memory * (1 + _GAIN), 0).sum(axis=1)
        return over, seconds.max(axis=1), (seconds**2).sum(axis=1)


def _better(new: tuple[float, ...], old: tuple[float, ...]) -> bool:
    for a, b in zip(new, old, strict=True):
        if abs(a - b) > _GAIN * max(a, b):
            return a < b
    return False


def _plan(tables: Sequence[ShardedTable], load: np.ndarray) -> ShardingPlan:
    seconds, stored = np.split(load, 2)
    return ShardingPlan(tuple(tables), tuple(seconds.tolist()), tuple(stored.tolist()))


def _cannot_be_divided(
    number: int, table: Table, cluster: ClusterResources, ways: Sequence[str]
) -> str:
    return (
        f"table {number} of {table.input_dim:,} x {table.units} cannot be divided over "
        f"{cluster.servers} servers by {', '.join(ways)}"
    )


def _what_binds(job: Job, options: Sequence[Sequence[Placed]], servers: int, memory: float) -> str:
    """The text of the error if no plan fits: all tables together, or the largest part."""
    least = sum(min(sum(p.bytes) for p in o) for o in options)
    if least > servers * memory:
        return (
            f"memory binds: the tables and their slots need {least:,.0f} bytes, but "
            f"{servers} servers hold {servers * memory:,.0f}"
        )
    parts = [min(max(p.bytes) for p in o) for o in options]
    i = int(np.argmax(parts))
    table = job.tables[i]
    return (
        f"memory binds: no plan was found in which each server holds at most {memory:,.0f} bytes; "
        f"the largest part is of table {i} ({table.input_dim:,} x {table.units}), at least "
        f"{parts[i]:,.0f} bytes on one server"
    )
