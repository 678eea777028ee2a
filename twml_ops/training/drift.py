"""Whether the features of new data are distributed as in the training of a run.

A run keeps a histogram of each number and category, with at most `CATEGORIES` + 2 bins, and the
share of unknown categories in its evaluation data. What is read for predictions is counted in the
same bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twml_ops._known_categories import Count, KnownCategories, read_arrays
from twml_ops.analysis.population_stability import BINS, CATEGORIES, STRONG, population_stability
from twml_ops.data import Block, Schema
from twml_ops.data.block import Array, Categories, Numbers

STATISTICS_FILE = "statistics.npz"
SAMPLE_ROWS = 1 << 16  # of the training data, from which the histograms are made
UNKNOWN_MORE = 0.1  # share of unknown categories beyond that of the evaluation data
LEAST_EXAMINED = 30  # fewer categories say nothing about a share
LISTED = 10
_FORMAT = 1


class EvenSample:
    """Examples at equal distances of data that are read once.

    Args:
        total: number of examples of the data.
    """

    def __init__(self, total: int) -> None:
        self._step, self._row = max(1, -(-total // SAMPLE_ROWS)), 0
        self._parts: list[Block] = []

    def add(self, block: Block) -> None:
        """The next examples."""
        rows = np.arange(-self._row % self._step, len(block), self._step)
        if len(rows):
            self._parts.append(block.take(rows))
        self._row += len(block)

    def block(self) -> Block | None:
        """The sample; None if there were no examples."""
        return Block.concat(self._parts) if self._parts else None


def categories_of(block: Block, schema: Schema) -> dict[str, Array]:
    """The ids of the categories of each column, -1 where a row has none."""
    group = block.groups.get("categorical")
    if not isinstance(group, Categories) or group.table.shape[1] != len(schema.fields):
        return {}  # as runs of older versions have them
    found = dict(zip(schema.fields, group.table.T, strict=True))
    for name in schema.bags:
        bag = group.bags[schema.categorical.index(name)]
        empty = int((np.diff(bag.row_splits) == 0).sum())
        found[name] = np.append(bag.ids, np.full(empty, -1))
    return found


def _values_of(block: Block, schema: Schema) -> dict[str, Array]:
    """Numbers, NaN where one is missing, and ids of categories, by column."""
    numbers = block.groups.get("continuous")
    found = dict(categories_of(block, schema))
    if isinstance(numbers, Numbers):
        found |= dict(zip(schema.continuous, numbers.table.T, strict=True))
    return found


def _bins_of(values: Array) -> Array:
    """The deciles of numbers, or the most frequent categories in ascending order."""
    if values.dtype.kind == "f":
        there = values[~np.isnan(values)]
        shares = np.arange(1, BINS) / BINS
        # A decile is one of the values, so that a frequent value is in one bin.
        edges = np.quantile(there, shares, method="inverted_cdf") if len(there) else there
        return np.unique(edges)
    ids, counts = np.unique(values[values >= 0], return_counts=True)
    return np.sort(ids[np.argsort(-counts, kind="stable")[:CATEGORIES]])


def _counted(values: Array, bins: Array) -> Array:
    """int64 [bins + 2]: how often each bin, something else, and nothing occurs."""
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        places = np.searchsorted(bins, values[~missing])
    else:
        missing = values < 0
        there = values[~missing]
        places = np.searchsorted(bins, there)
        known = np.append(bins, -1)[places] == there
        places = np.where(known, places, len(bins))
    return np.append(np.bincount(places, minlength=len(bins) + 1), missing.sum())


class Statistics:
    """Histograms of the features of training data.

    Args:
        bins: of each feature the upper ends of all bins but the last, or the ids that have a bin.
        counts: int64 [bins + 2] of each feature.
        unknown: how many categories of the evaluation data were not in the training data.
    """

    def __init__(
        self, bins: Mapping[str, Array], counts: Mapping[str, Array], unknown: Mapping[str, Count]
    ) -> None:
        self.bins, self.counts = dict(bins), dict(counts)
        self.unknown = dict(unknown)

    @classmethod
    def of(cls, sample: Block, schema: Schema) -> Statistics:
        """The statistics of a sample of the training data."""
        values = _values_of(sample, schema)
        bins = {name: _bins_of(column) for name, column in values.items()}
        return cls(bins, {n: _counted(values[n], bins[n]) for n in bins}, {})

    def add_unknown(self, known: KnownCategories, block: Block, schema: Schema) -> None:
        """Counts the unknown categories of evaluation data."""
        count_categories(known, block, schema, self.unknown)

    def count(self, block: Block, schema: Schema, counts: dict[str, Array]) -> None:
        """Adds examples of other data to `counts`, their numbers in the bins of each feature."""
        for name, values in _values_of(block, schema).items():
            bins = self.bins.get(name)
            if bins is not None and (bins.dtype.kind == "f") == (values.dtype.kind == "f"):
                counts[name] = counts.get(name, 0) + _counted(values, bins)

    def differences(
        self, counts: Mapping[str, Array], unknown: Mapping[str, Count]
    ) -> dict[str, str]:
        """The features that are distributed otherwise, strongest first.

        The distance is the population stability index; a feature differs strongly above 0.25
        (Siddiqi, "Credit Risk Scorecards", 2006). For a few examples the index is large by chance,
        so three times its expectation is added to the limit.

        Args:
            counts: of the other data, as `count` has made them.
            unknown: the numbers of their categories that were not in the training data.

        Returns:
            What differs, by feature.
        """
        found: dict[str, tuple[float, str]] = {}
        for name, ours in counts.items():
            drift = population_stability(self.counts[name], ours)
            if drift.psi > STRONG + 3 * drift.psi_by_chance:
                found[name] = drift.psi, f"PSI {drift.psi:.2f}"
        for name, count in unknown.items():
            usual = self.unknown.get(name, Count())
            if _has_more(count, usual):
                share = count.unknown / count.examined
                text = f"{share:.0%} unknown categories, {usual.unknown / usual.examined:.0%} "
                text += "in the evaluation data of the run"
                psi, said = found.get(name, (share, ""))
                found[name] = psi, ", ".join(filter(None, (said, text)))
        order = sorted(found, key=lambda name: -found[name][0])
        return {name: found[name][1] for name in order}

    def save(self, folder: Path) -> None:
        """Writes the statistics to the folder of a run."""
        names = [*self.bins]
        pairs = [self.unknown.get(name, Count()) for name in names]
        arrays = {f"bins_{i}": self.bins[name] for i, name in enumerate(names)}
        arrays |= {f"counts_{i}": self.counts[name] for i, name in enumerate(names)}
        np.savez(
            folder / STATISTICS_FILE,
            format=np.array(_FORMAT),
            features=np.array(names, np.str_),
            unknown=np.array(pairs, np.int64).reshape(len(names), 2),
            **arrays,  # type: ignore[arg-type]
        )

    @classmethod
    def load(cls, folder: Path) -> Statistics | None:
        """Reads the statistics of a run; None if it was written without.

        Raises:
            ValueError: the file is damaged.
        """
        return read_arrays(folder / STATISTICS_FILE, cls._of)

    @classmethod
    def _of(cls, saved: Mapping[str, Any]) -> Statistics:
        if int(saved["format"]) != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {saved['format']}")
        names = [str(name) for name in saved["features"]]
        bins = {name: saved[f"bins_{i}"] for i, name in enumerate(names)}
        counts = {name: saved[f"counts_{i}"] for i, name in enumerate(names)}
        for name in names:
            if counts[name].shape != (len(bins[name]) + 2,):
                raise ValueError(f"expected a count for each bin of {name}")
        pairs = zip(names, saved["unknown"].tolist(), strict=True)
        return cls(bins, counts, {name: Count(*pair) for name, pair in pairs})


def _has_more(count: Count, usual: Count) -> bool:
    """Whether a share of unknown categories is larger than usual, and not by chance."""
    if min(count.examined, usual.examined) < LEAST_EXAMINED:
        return False
    share = (count.unknown + usual.unknown) / (count.examined + usual.examined)
    error = math.sqrt(share * (1 - share) * (1 / count.examined + 1 / usual.examined))
    more = count.unknown / count.examined - usual.unknown / usual.examined
    return more > UNKNOWN_MORE + 3 * error


def count_categories(
    known: KnownCategories, block: Block, schema: Schema, counts: dict[str, Count]
) -> None:
    """Adds the categories of examples to `counts`, by column."""
    for name, ids in categories_of(block, schema).items():
        if name in known.fields:
            counts[name] = counts.get(name, Count()) + known.count(name, ids)


def drift_warning(data: str, differences: Mapping[str, str]) -> str:
    """One line that names the features that differ.

    Args:
        data: name of the data.
        differences: as of `Statistics.differences`, at least one.
    """
    texts = [f"{name} ({text})" for name, text in differences.items()][:LISTED]
    more = f" and {len(differences) - LISTED} more" if len(differences) > LISTED else ""
    return f"{data}: distributed otherwise than the training data: {'; '.join(texts)}{more}"
