"""Divides the fields of a model into towers, by the cosines of their learned mean vectors.

Fields of one tower interact on one host, and only the output of the tower leaves it (Luo et al.,
"Disaggregated Multi-Tower: Topology-aware Modeling Technique for Efficient Large Scale
Recommendation", MLSys 2024, whose tower partitioner this follows). There, a distance-preserving map
to points and constrained k-means make the towers. Here, the sum of the cosines within the towers is
changed directly by local search, which needs no map and no random numbers of the caller.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Strategy = Literal["coherent", "diverse"]
STRATEGIES = ("coherent", "diverse")

_STARTS = 8  # assignments that grow from seeds, and the fewest random ones
_WORK, _MOST_STARTS = 2048, 24  # fields in all random assignments, and the most of them
_MAX_SWEEPS = 50  # passes over the fields in which an assignment is improved
_GAIN = 1e-9  # what a change must gain, and by what share a cost may exceed its limit

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TowerPartition:
    """The fields of each tower.

    Attributes:
        fields: Positions of the fields of each tower, ascending; towers are in the order of their
            first fields.
        costs: The sum of the costs of each tower's fields.
        within: Mean absolute cosine of two fields of one tower; NaN if no tower has two.
        between: Mean absolute cosine of two fields of different towers; NaN with one tower.
    """

    fields: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]
    within: float
    between: float


def mean_vectors(tables: Sequence[npt.ArrayLike], counts: Sequence[npt.ArrayLike]) -> Array:
    """Computes the mean vector of each field, weighted by how often each row is looked up.

    Args:
        tables: The rows [R_f, D] of each field, of one width D.
        counts: How often each row occurs [R_f], for each field; not negative.

    Returns:
        Float64 [F, D].

    Raises:
        ValueError: A shape differs, there is no field, a number is not finite or a count negative,
            or no row of a field occurs.
    """
    if len(tables) != len(counts) or not tables:
        raise ValueError(
            f"counts must have an array for each of at least one table, got {len(counts)} for "
            f"{len(tables)} tables"
        )
    means: list[Array] = []
    for f, (table, count) in enumerate(zip(tables, counts, strict=True)):
        rows, weights = np.asarray(table, np.float64), np.asarray(count, np.float64)
        width = means[0].shape[0] if means else rows.shape[-1]
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ValueError(f"tables[{f}] must be [R, {width}], got the shape {rows.shape}")
        if weights.shape != rows.shape[:1]:
            raise ValueError(f"counts[{f}] must be [{len(rows)}], got the shape {weights.shape}")
        if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
            raise ValueError(f"counts[{f}] must be finite, not negative, and not all zero")
        if not np.isfinite(rows).all():
            raise ValueError(f"tables[{f}] must be finite")
        means.append(weights @ rows / weights.sum())
    return np.stack(means)


def partition_fields(
    vectors: npt.ArrayLike,
    towers: int,
    costs: npt.ArrayLike | None = None,
    *,
    strategy: Strategy = "coherent",
    imbalance: float = 0.1,
) -> TowerPartition:
    """Divides fields into towers of about equal cost.

    The result maximizes ("coherent") or minimizes ("diverse") the sum of the absolute cosines of
    the pairs of fields within a tower. Local search (Kernighan and Lin, 1970) moves single fields
    and swaps pairs until no change helps, from an assignment by descending cost, from some that
    grow from seeds, and from random ones, at most 33 together. The best one is returned, the same
    in each call. A call takes O(F^2) memory, and for each assignment at most 50 passes over the
    fields of O(F^2 T) time with T towers.

    The order of the fields does not matter. Fields with equal vectors and costs are exchangeable.

    Args:
        vectors: The mean vectors [F, D] of the fields, such as of `mean_vectors`. A vector of zeros
            has the cosine 0 with all others.
        towers: Number of towers, 1 to F.
        costs: Cost of each field [F], positive, in any unit, such as the bytes that its lookups
            need in a step; None: 1 each.
        strategy: Whether similar fields come into the same tower or into different ones.
        imbalance: By which share the cost of a tower may be above or below the mean cost of the
            towers. Where the assignment of the fields by descending cost to the least loaded tower
            does not reach this, its largest or smallest tower is the limit instead.

    Returns:
        The towers, each with at least one field.

    Raises:
        ValueError: An argument is out of range, or has another shape.
    """
    x = np.asarray(vectors, np.float64)
    if x.ndim != 2 or not x.size or not np.isfinite(x).all():
        raise ValueError(f"vectors must be finite numbers [F, D], got the shape {x.shape}")
    try:
        count = operator.index(towers)
    except TypeError:
        raise ValueError(f"towers must be an integer, got {towers!r}") from None
    if not 1 <= count <= len(x):
        raise ValueError(f"towers must be from 1 to the number of fields, {len(x)}, got {count}")
    cost = np.ones(len(x)) if costs is None else np.asarray(costs, np.float64)
    if cost.shape != x.shape[:1] or not (np.isfinite(cost) & (cost > 0)).all():
        raise ValueError(f"costs must be {len(x)} positive numbers, got {costs!r:.200}")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if not 0 <= imbalance < np.inf:
        raise ValueError(f"imbalance must be finite and not negative, got {imbalance!r}")

    # All decisions are made in an order of the fields that depends on their values only.
    order = np.lexsort((*x.T[::-1], -cost))
    norms = np.linalg.norm(x, axis=1)
    unit = (x / np.where(norms > 0, norms, 1)[:, None])[order]
    cosines = np.abs(unit @ unit.T)
    np.fill_diagonal(cosines, 0)
    search = _Search(cosines if strategy == "coherent" else -cosines, cost[order], count, imbalance)
    best = search.best()
    tower_of = np.empty(len(x), np.int64)
    tower_of[order] = best
    fields = sorted(tuple(np.flatnonzero(tower_of == t).tolist()) for t in range(count))
    same = best[:, None] == best
    np.fill_diagonal(same, False)
    within, between = int(same.sum()), len(x) * (len(x) - 1) - int(same.sum())
    inside, total = float(cosines[same].sum()), float(cosines.sum())
    return TowerPartition(
        tuple(fields),
        tuple(float(cost[list(of_tower)].sum()) for of_tower in fields),
        inside / within if within else float("nan"),
        (total - inside) / between if between else float("nan"),
    )


class _Search:
    """Assignments: for each field the number of its tower.

    Args:
        affinity: Symmetric [F, F] with a diagonal of zeros; pairs of large numbers belong together.
        cost: [F], descending.
        towers: Number of towers.
        imbalance: See `partition_fields`.
    """

    def __init__(self, affinity: Array, cost: Array, towers: int, imbalance: float) -> None:
        self.affinity, self.cost, self.towers = affinity, cost, towers
        self.by_cost = self._by_cost()
        load = np.bincount(self.by_cost, cost, towers)
        mean = cost.sum() / towers
        self.limit = max((1 + imbalance) * mean, load.max()) * (1 + _GAIN)
        self.least = min((1 - imbalance) * mean, load.min()) * (1 - _GAIN)
        self.least = max(self.least, 0.5 * cost[-1])  # no tower is empty

    def best(self) -> Array:
        """The best of the improved assignments."""
        starts = [self.by_cost]
        rng = np.random.default_rng(0)
        totals = self.affinity.sum(axis=1)
        for first in [int(totals.argmax()), *rng.integers(0, len(totals), _STARTS - 1)]:
            grown = self._grown(int(first))
            if grown is not None:
                starts.append(grown)
        shuffled = min(max(_STARTS, _WORK // len(totals)), _MOST_STARTS)
        starts += [self._shuffled(rng) for _ in range(shuffled)]
        found = [self._improved(start) for start in starts]
        return max(found, key=self._value)

    def _allowed(self, load: Array) -> Array:
        """Whether towers may have these costs."""
        return (load <= self.limit) & (load >= self.least)

    def _value(self, tower_of: Array) -> float:
        return float(self.affinity[tower_of[:, None] == tower_of].sum())

    def _by_cost(self) -> Array:
        """Each field, in the order of descending cost, to the tower with the least cost."""
        load, tower_of = np.zeros(self.towers), np.empty(len(self.cost), np.int64)
        for i, cost in enumerate(self.cost):
            tower_of[i] = load.argmin()
            load[tower_of[i]] += cost
        return tower_of

    def _grown(self, first: int) -> Array | None:
        """Adds to the least loaded tower the field with the largest mean affinity, again and again.

        The seeds of the towers are `first` and then the fields with the least affinity to seeds.

        Returns:
            The assignment; None: it is not within the limits.
        """
        seeds, nearest = [first], self.affinity[first].copy()
        nearest[first] = np.inf
        for _ in range(1, self.towers):
            seeds.append(int(nearest.argmin()))
            nearest = np.maximum(nearest, self.affinity[seeds[-1]])
            nearest[seeds] = np.inf
        tower_of, load = np.full(len(self.cost), -1), self.cost[seeds].copy()
        tower_of[seeds] = np.arange(self.towers)
        sums = self.affinity[:, seeds].copy()
        for _ in range(len(self.cost) - self.towers):
            t = int(load.argmin())
            i = int(np.where(tower_of < 0, sums[:, t], -np.inf).argmax())
            tower_of[i] = t
            sums[:, t] += self.affinity[:, i]
            load[t] += self.cost[i]
        return tower_of if self._allowed(load).all() else None

    def _shuffled(self, rng: np.random.Generator) -> Array:
        """The assignment by cost after random moves and swaps within the limits."""
        tower_of, cost = self.by_cost.tolist(), self.cost.tolist()
        load = np.bincount(self.by_cost, self.cost, self.towers).tolist()
        for i, j in rng.integers(0, len(cost), (4 * len(cost), 2)).tolist():
            a, b = tower_of[i], tower_of[j]
            for lost in (cost[i], cost[i] - cost[j]):  # by a: a move, or a swap
                both = load[a] - lost, load[b] + lost
                if a != b and min(both) >= self.least and max(both) <= self.limit:
                    load[a], load[b] = both
                    tower_of[i], tower_of[j] = b, b if lost == cost[i] else a
                    break
        return np.array(tower_of)

    def _improved(self, start: Array) -> Array:
        """Moves and swaps fields until nothing helps, in at most `_MAX_SWEEPS` passes."""
        tower_of = start.copy()
        for _ in range(_MAX_SWEEPS):
            sums = self.affinity @ np.eye(self.towers)[tower_of]  # [F, T], without rounding errors
            load = np.bincount(tower_of, self.cost, self.towers)  # of the changes of earlier passes
            changes = [self._change(i, tower_of, sums, load) for i in range(len(tower_of))]
            if not any(changes):
                break
        return tower_of

    def _change(self, i: int, tower_of: Array, sums: Array, load: Array) -> bool:
        """Makes the best change of field i, if it helps: a move to a tower, or a swap."""
        a, cost = tower_of[i], self.cost
        moves = sums[i] - sums[i, a]
        moves[~self._allowed(load + cost[i]) | ~self._allowed(load[a] - cost[i])] = -np.inf
        moves[a] = -np.inf
        rows = np.arange(len(tower_of))
        swaps = sums[i, tower_of] - sums[i, a] - 2 * self.affinity[i]
        swaps += sums[:, a] - sums[rows, tower_of]
        swaps[~self._allowed(load[a] - cost[i] + cost)] = -np.inf
        swaps[~self._allowed(load[tower_of] - cost + cost[i]) | (tower_of == a)] = -np.inf
        j, b = int(swaps.argmax()), int(moves.argmax())
        if max(swaps[j], moves[b]) <= _GAIN:
            return False
        changes = [(i, b)] if moves[b] >= swaps[j] else [(i, int(tower_of[j])), (j, int(a))]
        for k, to in changes:
            old = tower_of[k]
            sums[:, old] -= self.affinity[:, k]
            sums[:, to] += self.affinity[:, k]
            load[old] -= cost[k]
            load[to] += cost[k]
            tower_of[k] = to
        return True
