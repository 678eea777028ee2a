"""Planted data: requests for access to resources, of nothing but categories with many values.

    python -m benchmarks.quality.access_requests FOLDER

writes FOLDER/access_train.csv and FOLDER/access_test.csv, which are the same on every machine, and
prints the metrics of the best possible predictions, which know the effects of pairs and triples
that no training row has.
Each row is a request of an employee, who has a department and a job title, for a resource. Whether
the request is granted depends on single columns, on pairs and triples of them, and on whether the
department usually has the resource. Most pairs are rare, some columns follow from others, and one
repeats another under a second name, as in real data of that kind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.quality.planted_files import best_possible, write_files

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROWS, TEST_SHARE = 40_000, 0.2
COLUMNS = (
    *("resource", "manager", "department", "division", "site"),
    *("title", "family", "description", "code"),
)
_SIZES = {"resource": 6000, "manager": 3500, "department": 400, "title": 300}
_PARENTS = {"division": 120, "site": 160, "family": 60}  # of a department or a title
_TITLES_HERE, _RESOURCES_HERE = 10, 30  # of a department
_EFFECTS: dict[tuple[str, ...], float] = {
    ("resource",): 0.6,
    ("manager",): 0.5,
    ("title",): 0.3,
    ("resource", "department"): 1.0,
    ("resource", "title"): 0.8,
    ("manager", "title"): 0.7,
    ("resource", "department", "title"): 0.9,
}
"""Standard deviation of the effect of a combination of values on the logit."""
_BASE, _UNUSUAL = 3.6, -1.5


def generate(seed: int = 0, rows: int = ROWS) -> tuple[dict[str, Array], Array]:
    """Makes the data.

    Args:
        seed: the seed of all random numbers.
        rows: number of rows.

    Returns:
        (the columns by name, the labels), int64 [rows] each.
    """
    columns, labels, _ = _drawn(seed, rows)
    return columns, labels


def _drawn(seed: int, rows: int) -> tuple[dict[str, Array], Array, Floats]:
    """What `generate` returns, and the logits of the labels given the columns."""
    rng = np.random.default_rng(seed)
    departments, titles = _SIZES["department"], _SIZES["title"]
    titles_here = rng.integers(titles, size=(departments, _TITLES_HERE))
    usual = _frequent(rng, "resource", departments * _RESOURCES_HERE)
    usual = usual.reshape(departments, _RESOURCES_HERE)
    manager = _frequent(rng, "manager", rows)
    department = rng.integers(departments, size=_SIZES["manager"])[manager]
    title = titles_here[department, rng.integers(_TITLES_HERE, size=rows)]
    own = usual[department, rng.integers(_RESOURCES_HERE, size=rows)]
    resource = np.where(rng.random(rows) < 0.7, own, _frequent(rng, "resource", rows))
    columns = {
        "resource": resource,
        "manager": manager,
        "department": department,
        "division": rng.integers(_PARENTS["division"], size=departments)[department],
        "site": rng.integers(_PARENTS["site"], size=departments)[department],
        "title": title,
        "family": rng.integers(_PARENTS["family"], size=titles)[title],
        "description": (title * 7 + department % 5) % 1499,
        "code": rng.permutation(titles)[title],
    }
    logit = np.full(rows, _BASE)
    for names, deviation in _EFFECTS.items():
        cells = np.stack([columns[n] for n in names], axis=1)
        _, cell = np.unique(cells, axis=0, return_inverse=True)
        cell = cell.reshape(-1)
        logit += deviation * rng.normal(size=cell.max() + 1)[cell]
    logit += _UNUSUAL * ~(usual[department] == resource[:, np.newaxis]).any(axis=1)
    labels = rng.random(rows) < 1 / (1 + np.exp(-logit))
    return {name: columns[name] for name in COLUMNS}, labels.astype(np.int64), logit


def _frequent(rng: np.random.Generator, column: str, rows: int) -> Array:
    """Values of a column, few of which are frequent, by Zipf's law."""
    size = _SIZES[column]
    weights = 1 / (np.arange(size) + 10.0)
    return rng.permutation(size)[rng.choice(size, rows, p=weights / weights.sum())]


if __name__ == "__main__":
    planted = _drawn(0, ROWS)
    write_files(Path(sys.argv[1]), "access", *planted[:2], TEST_SHARE)
    print(best_possible(*planted[1:], TEST_SHARE))
