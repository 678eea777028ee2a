"""Exact quantiles per feature: where `adapt` puts the boundaries. Holds all it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Boundaries(NamedTuple):
    """Ragged boundaries: feature f has items splits[f] .. splits[f + 1].

    Attributes:
        feature_ids: int64 [F], strictly ascending.
        boundaries: float32 [splits[F]], of each feature strictly ascending.
        splits: int64 [F + 1].
    """

    feature_ids: Ints
    boundaries: Floats
    splits: Ints


class ExactQuantiles:
    """Collects (feature, value) entries and cuts each feature's values into bins."""

    def __init__(self) -> None:
        self._ids: list[Ints] = []
        self._values: list[Floats] = []

    def update(self, ids: Ints, values: Floats) -> None:
        """Takes in entries: feature ids int64 [K], values float32 [K]. A NaN is no value."""
        self._ids.append(ids)
        self._values.append(values)

    def boundaries(
        self, num_bins: int | Mapping[int, int], side: Literal["left", "right"]
    ) -> Boundaries:
        """The boundaries that cut each feature's n values into bins.

        With at most `num_bins` distinct values, each gets a bin. Otherwise the cuts are at the
        quantiles i / num_bins, 0 < i < num_bins: behind the smallest value x with
        `#{values <= x} >= i n / num_bins` (the inverse of the empirical distribution); equal cuts
        are one. The bins hold the same values for either `side`.

        Args:
            num_bins: most bins a feature gets, or that number for each feature that is wanted.
            side: "left": the boundary is the last value before the cut, "right": the first after.

        Returns:
            The features seen (and wanted), ascending, with their boundaries.
        """
        ids = np.concatenate([np.zeros(0, np.int64), *self._ids])
        values = np.concatenate([np.zeros(0, np.float32), *self._values])
        if isinstance(num_bins, Mapping):
            wanted = np.isin(ids, np.array(list(num_bins), np.int64))
            ids, values = ids[wanted], values[wanted]
        feature_ids = np.unique(ids)
        if isinstance(num_bins, Mapping):
            bins = np.array([num_bins[int(feature)] for feature in feature_ids], np.int64)
        else:
            bins = np.full(len(feature_ids), num_bins, np.int64)

        ids, values = ids[~np.isnan(values)], values[~np.isnan(values)]
        order = np.lexsort((values, ids))
        ids, values = ids[order], values[order]
        # One item for each distinct value of each feature, with the number of values up to it.
        ends = np.flatnonzero(np.append((ids[1:] != ids[:-1]) | (values[1:] != values[:-1]), True))
        ends = ends[: len(ids)]  # none in an empty batch
        f = np.searchsorted(feature_ids, ids[ends])
        count = np.bincount(np.searchsorted(feature_ids, ids), minlength=len(feature_ids))
        up_to = ends + 1 - (np.cumsum(count) - count)[f]

        distinct = np.bincount(f, minlength=len(feature_ids))
        last = np.append(f[1:] != f[:-1], True)[: len(f)]
        passed = up_to * bins[f] // count[f]  # how many of the quantiles lie at or before
        passed_before = np.where(np.append(True, last[:-1])[: len(f)], 0, np.roll(passed, 1))
        cut = ((passed > passed_before) | (distinct <= bins)[f]) & ~last
        at = np.flatnonzero(cut) + (side == "right")
        splits = np.concatenate([[0], np.cumsum(np.bincount(f[cut], minlength=len(feature_ids)))])
        return Boundaries(feature_ids, values[ends[at]], splits.astype(np.int64))
