"""Planted data whose labels depend on interactions of several orders and forms.

    python -m benchmarks.quality.mixed_orders FOLDER [SEED]

writes FOLDER/mixed_train.csv and FOLDER/mixed_test.csv, which are the same on every machine. The
logit of a row of 12 categories is a sum of five parts with about the same variance, each of which
one kind of interaction expresses best:

- a weight for each category (linear);
- the dot products of vectors of chosen pairs of columns (dot products);
- elementwise products of the vectors of three columns (cross layers);
- a column that selects which of the others counts (attention);
- products of neighbouring columns, the same function at each position (convolution).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.quality.planted_files import write_files

Array = npt.NDArray[np.int64]

ROWS, TEST_SHARE = 60_000, 0.2
COLUMNS = tuple(f"c{i}" for i in range(12))
_VALUES, _WIDTH = 40, 4  # of a column; of the vectors that make the labels
_SCALE, _BASE = 0.9, -1.2
"""Standard deviation of each part of the logit, and the logit without them."""


def generate(seed: int = 0, rows: int = ROWS) -> tuple[dict[str, Array], Array]:
    """Makes the data.

    Args:
        seed: the seed of all random numbers.
        rows: number of rows.

    Returns:
        (the columns by name, the labels), int64 [rows] each.
    """
    rng = np.random.default_rng(seed)
    weights = 1 / (np.arange(_VALUES) + 4.0)
    ids = rng.choice(_VALUES, (rows, len(COLUMNS)), p=weights / weights.sum())
    logit = np.full(rows, _BASE)
    for part in (_linear, _pairs, _triples, _selected, _neighbours):
        values = part(rng, ids)
        logit += _SCALE * (values - values.mean()) / values.std()
    labels = rng.random(rows) < 1 / (1 + np.exp(-logit))
    return {n: ids[:, i] for i, n in enumerate(COLUMNS)}, labels.astype(np.int64)


def _vectors(rng: np.random.Generator, ids: Array) -> npt.NDArray[np.float64]:
    """A random vector for each category, [rows, columns, _WIDTH]."""
    tables = rng.normal(size=(len(COLUMNS), _VALUES, _WIDTH))
    return np.stack([table[ids[:, i]] for i, table in enumerate(tables)], axis=1)


def _linear(rng: np.random.Generator, ids: Array) -> npt.NDArray[np.float64]:
    return np.asarray(_vectors(rng, ids)[:, :, 0].sum(axis=1))


def _pairs(rng: np.random.Generator, ids: Array) -> npt.NDArray[np.float64]:
    v = _vectors(rng, ids)
    return np.asarray(sum((v[:, i] * v[:, i + 6]).sum(axis=1) for i in range(6)))


def _triples(rng: np.random.Generator, ids: Array) -> npt.NDArray[np.float64]:
    v = _vectors(rng, ids)
    return np.asarray(sum((v[:, i] * v[:, i + 4] * v[:, i + 8]).sum(axis=1) for i in range(2)))


def _selected(rng: np.random.Generator, ids: Array) -> npt.NDArray[np.float64]:
    chosen = ids[:, 0] % (len(COLUMNS) - 1) + 1
    weight = _vectors(rng, ids)[:, :, 0]
    return np.asarray(np.take_along_axis(weight, chosen[:, None], axis=1)[:, 0])


def _neighbours(rng: np.random.Generator, ids: Array) -> npt.NDArray[np.float64]:
    weight = rng.normal(size=_VALUES)[ids]  # the same weights in each column
    return np.asarray((weight[:, :-1] * weight[:, 1:]).sum(axis=1))


if __name__ == "__main__":
    chosen_seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    write_files(Path(sys.argv[1]), "mixed", *generate(chosen_seed), TEST_SHARE)
