"""Planted data whose categories belong to clusters that decide the labels.

    python -m benchmarks.quality.semantic_clusters FOLDER [SEED]

writes FOLDER/clusters_train.csv and FOLDER/clusters_test.csv, which are the same on every machine.
Each of three columns has 20,000 categories, whose frequencies fall as 1 / (rank + 20). A category
belongs to one of 60 clusters, at random, so neither its number nor its frequency tells which. Its
vector is that of its cluster and a small part of its own. The logit of a row is the sum of the
dot products of the vectors of each two columns and of a weight of each category, which is made the
same way.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.quality.planted_files import write_files

Array = npt.NDArray[np.int64]

ROWS, TEST_SHARE = 150_000, 0.2
COLUMNS = ("user", "item", "query")
_VALUES, _CLUSTERS, _WIDTH = 20_000, 60, 4
_OWN = 0.3
"""Standard deviation of the part of a category's vector that its cluster does not have."""
_LINEAR, _PAIRS, _BASE = 0.8, 1.2, -1.2
"""Standard deviations of both parts of the logit, and the logit without them."""


def generate(seed: int = 0, rows: int = ROWS) -> tuple[dict[str, Array], Array]:
    """Makes the data.

    Args:
        seed: the seed of all random numbers.
        rows: number of rows.

    Returns:
        (the columns by name, the labels), int64 [rows] each.
    """
    rng = np.random.default_rng(seed)
    weights = 1 / (np.arange(_VALUES) + 20.0)
    ids = [rng.choice(_VALUES, rows, p=weights / weights.sum()) for _ in COLUMNS]
    linear, vectors = np.zeros(rows), []
    for column in ids:
        cluster = rng.integers(_CLUSTERS, size=_VALUES)
        of_cluster = rng.normal(size=(_CLUSTERS, 1 + _WIDTH))
        table = of_cluster[cluster] + _OWN * rng.normal(size=(_VALUES, 1 + _WIDTH))
        linear += table[column, 0]
        vectors.append(table[column, 1:])
    pairs = sum((a * b).sum(axis=1) for a, b in itertools.combinations(vectors, 2))
    logit = _BASE + _LINEAR * _standardized(linear) + _PAIRS * _standardized(np.asarray(pairs))
    labels = rng.random(rows) < 1 / (1 + np.exp(-logit))
    return dict(zip(COLUMNS, ids, strict=True)), labels.astype(np.int64)


def _standardized(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray((values - values.mean()) / values.std())


if __name__ == "__main__":
    chosen_seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    write_files(Path(sys.argv[1]), "clusters", *generate(chosen_seed), TEST_SHARE)
