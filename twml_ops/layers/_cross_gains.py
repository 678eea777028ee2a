"""Ranks crosses of categorical fields by how much they add to the fields themselves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Cross = tuple[int, ...]

_PRIOR = 4.0  # 1 / the variance of the effects of categories on the logit
_KEPT = 64  # candidates of each size that are looked at more than once
_NEW_CATEGORIES = 1.02  # smallest factor by which a cross has more categories than a part of it
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Limits(NamedTuple):
    """The limits of the search.

    Attributes:
        crosses: largest number of crosses.
        size: largest number of fields of a cross.
        categories: largest number of categories of all crosses together.
    """

    crosses: int
    size: int
    categories: float


class _Effect(NamedTuple):
    """The gain of a cross: its columns [2, N] of a linear model, and the reduction of the loss."""

    columns: Array
    gain: float


class CrossRanking:
    """Chooses crosses one after the other, each by its gain beyond those before it.

    A linear model of the statistics of the single fields predicts the logits of all rows. The gain
    of a cross is the reduction of the loss by one Newton step of two further columns: the posterior
    mean of the effect of the row's category on the logit, and the logarithm of its frequency, both
    of the *other* rows of the category. A row's own label is thus never used to predict it. The
    columns of a chosen cross are added to the logits. This needs one pass over the rows for each
    candidate and no sorting: categories are counted in buckets by a hash.

    Args:
        ids: int64 [N, F].
        labels: float64 [N], in [0, 1].
        weights: float64 [N].
    """

    def __init__(self, ids: Array, labels: Array, weights: Array) -> None:
        self._fields = ids.shape[1]
        self._labels, self._weights = labels, weights
        codes = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in ids.T]
        self._codes = [code.astype(np.uint64) for code in codes]
        self._bits = max(8, math.ceil(math.log2(4 * len(ids))))
        self._num_categories: dict[Cross, int] = {}
        self._last: tuple[Cross, Array] | None = None  # a cross is counted, then looked at
        self._logits = self._of_single_fields()
        self._update()

    def choose(self, limits: Limits) -> list[Cross]:
        """Chooses crosses.

        Args:
            limits: when the search ends.

        Returns:
            The crosses in the order of their choice, best first.
        """
        pairs = list(itertools.combinations(range(self._fields), 2))
        found = self._gains(pairs)
        # As many exponentially distributed gains of useless candidates exceed it seldom.
        least = 3.0 + math.log(max(1, len(pairs)))
        waiting = dict(sorted(found.items(), key=lambda item: -item[1])[:_KEPT])
        chosen: list[Cross] = []
        room = limits.categories
        while waiting and len(chosen) < limits.crosses:
            best = self._best(waiting)
            if waiting.pop(best) < least:
                break
            if self._num_categories[best] > room:
                continue
            room -= self._num_categories[best]
            chosen.append(best)
            self._add(best)
            if len(best) < limits.size:
                wider = (tuple(sorted({*best, f})) for f in range(self._fields) if f not in best)
                fresh = [c for c in wider if c not in waiting and c not in chosen]
                waiting.update((c, g) for c, g in self._gains(fresh).items() if g >= least)
        return chosen

    def _best(self, waiting: dict[Cross, float]) -> Cross:
        """The candidate with the largest gain; only gains that may be it are recomputed."""
        best: Cross | None = None
        for cross in sorted(waiting, key=lambda c: -waiting[c]):
            if best is not None and waiting[cross] <= waiting[best]:
                break  # gains decrease as crosses are added
            waiting[cross] = self._effect(cross).gain
            if best is None or waiting[cross] > waiting[best]:
                best = cross
        assert best is not None
        return best

    def _gains(self, crosses: Iterable[Cross]) -> dict[Cross, float]:
        return {c: self._effect(c).gain for c in crosses if not self._is_redundant(c)}

    def _is_redundant(self, cross: Cross) -> bool:
        """Whether a part of the cross has as many categories."""
        parts = itertools.combinations(cross, len(cross) - 1)
        most = max(self._count(part) for part in parts)
        return self._count(cross) < _NEW_CATEGORIES * most

    def _count(self, cross: Cross) -> int:
        if cross not in self._num_categories:
            occupied = np.bincount(self._buckets(cross), minlength=1)
            self._num_categories[cross] = int(np.count_nonzero(occupied))
        return self._num_categories[cross]

    def _buckets(self, cross: Sequence[int]) -> Array:
        """int64 [N]: the bucket of each row's category."""
        if self._last is not None and self._last[0] == tuple(cross):
            return self._last[1]
        key = self._codes[cross[0]] * _MULTIPLIER
        for field in cross[1:]:
            key ^= key >> np.uint64(29)
            key = (key + self._codes[field]) * _MULTIPLIER
        self._last = tuple(cross), (key >> np.uint64(64 - self._bits)).astype(np.int64)
        return self._last[1]

    def _effect(self, cross: Sequence[int]) -> _Effect:
        buckets = self._buckets(cross)
        residuals, curvatures = self._residuals, self._curvatures
        others = np.bincount(buckets, residuals)[buckets] - residuals
        seen = np.maximum(np.bincount(buckets, curvatures)[buckets] - curvatures, 0.0)
        columns = np.stack([others / (seen + _PRIOR), np.log1p(seen / self._mean_curvature)])
        gradient, hessian = _derivatives(columns, residuals, curvatures)
        return _Effect(columns, float(gradient @ np.linalg.solve(hessian, gradient)) / 2)

    def _add(self, cross: Cross) -> None:
        columns = self._effect(cross).columns
        for _ in range(2):
            gradient, hessian = _derivatives(columns, self._residuals, self._curvatures)
            step = np.linalg.solve(hessian, gradient)
            self._logits = self._logits + step[0] + step[1:] @ columns
            self._update()

    def _update(self) -> None:
        p = 1 / (1 + np.exp(-self._logits))
        self._residuals = self._weights * (self._labels - p)
        self._curvatures = self._weights * p * (1 - p)
        self._mean_curvature = max(float(self._curvatures.mean()), 1e-12)

    def _of_single_fields(self) -> Array:
        """The logits of a linear model of the statistics of each field."""
        total, positive = self._weights.sum(), self._weights @ self._labels
        base = math.log((positive + 0.5) / (total - positive + 0.5))
        self._logits = np.full(len(self._labels), base)
        self._update()
        columns = np.concatenate([self._effect([f]).columns for f in range(self._fields)]).T
        return self._logits + linear_logits(columns, self._labels, self._weights, base)[0]


def linear_logits(
    columns: Array, labels: Array, weights: Array, base: float, others: Array | None = None
) -> tuple[Array, Array | None]:
    """Logistic regression by Newton's method.

    Args:
        columns: float [N, C].
        labels: [N], in [0, 1].
        weights: [N].
        base: logit to which the logits of the model are added.
        others: float [M, C], further rows.

    Returns:
        What is to be added to `base` for the rows of `columns` and for the rows of `others`.
    """
    coefficients = np.zeros(columns.shape[1] + 1)
    for _ in range(5):
        p = 1 / (1 + np.exp(-(base + coefficients[0] + _products(columns, coefficients[1:]))))
        gradient, hessian = _derivatives(columns.T, weights * (labels - p), weights * p * (1 - p))
        gradient[1:] -= coefficients[1:]  # L2 regularization of strength 1
        coefficients += np.linalg.solve(hessian, gradient)
    values = coefficients[0] + _products(columns, coefficients[1:])
    if others is None:
        return values, None
    return values, coefficients[0] + _products(others, coefficients[1:])


def _derivatives(columns: Array, residuals: Array, curvatures: Array) -> tuple[Array, Array]:
    """Gradient [1 + C] and Hessian of the log likelihood in a constant and columns [C, N]."""
    gradient = np.concatenate([[residuals.sum()], np.einsum("cn,n->c", columns, residuals)])
    hessian = np.eye(len(gradient))
    scaled = columns * curvatures
    hessian[0, 0] += curvatures.sum()
    hessian[0, 1:] = hessian[1:, 0] = scaled.sum(axis=1)
    # Without BLAS, whose threads wait busily for one another and for the next product.
    hessian[1:, 1:] += np.einsum("cn,dn->cd", scaled, columns)
    return gradient, hessian


def _products(rows: Array, coefficients: Array) -> Array:
    """The product of a matrix [N, C] and a vector [C], without BLAS as well."""
    products: Array = np.einsum("cn,c->n", rows.T, coefficients)
    return products
