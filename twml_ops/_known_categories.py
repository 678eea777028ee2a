"""Which categories a model has seen in training: a sample of bounded size, without TensorFlow.

Category ids are hashes, and a model has no list of them. Of each field the ids that end in a
number of zero bits are kept: all of them while there are few, and the number grows when there are
more than `CAPACITY` (Gibbons, "Distinct sampling", 2001). An id of the sample is known or unknown
for certain, so that the share of unknown ones among them estimates that of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

CATEGORIES_FILE = "categories.npz"
"""The file beside a model with what `KnownCategories.save` writes."""

CAPACITY = 1 << 14  # ids of a field, 128 KiB
LEAST_EXAMINED = 10
UNKNOWN_SHARE = 0.9
_FORMAT = 1

Array = NDArray[Any]
_T = TypeVar("_T")


class Count(NamedTuple):
    """How many categories of a field were looked up.

    Attributes:
        examined: the categories that belong to the sample.
        unknown: examined categories that were not in the training data.
    """

    examined: int = 0
    unknown: int = 0

    def __add__(self, other: Any) -> Count:
        return Count(self.examined + other.examined, self.unknown + other.unknown)

    @property
    def suspicious(self) -> bool:
        """Whether nearly all are unknown, which a change of spelling causes."""
        return self.examined >= LEAST_EXAMINED and self.unknown >= UNKNOWN_SHARE * self.examined


class KnownCategories:
    """A sample of the categories of each field.

    Args:
        fields: names of the categorical columns, bags included.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = tuple(fields)
        self._ids: dict[str, Array] = {name: np.zeros(0, np.int64) for name in fields}
        self._bits = dict.fromkeys(fields, 0)

    def add(self, field: str, ids: Array) -> None:
        """Adds categories of the training data.

        Args:
            field: name of the column.
            ids: int64 of any shape, -1 where a category is missing.
        """
        found = np.union1d(self._ids[field], self._of_sample(field, ids))
        while len(found) > CAPACITY:
            self._bits[field] += 1
            found = self._of_sample(field, found)
        self._ids[field] = found

    def count(self, field: str, ids: Array) -> Count:
        """Looks up categories; see `add`."""
        ids = self._of_sample(field, ids)
        known = self._ids[field]
        if not len(known):
            return Count(len(ids), len(ids))
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return Count(len(ids), int((known[places] != ids).sum()))

    def _of_sample(self, field: str, ids: Array) -> Array:
        ids = np.ravel(ids)
        return ids[(ids >= 0) & (ids & ((1 << self._bits[field]) - 1) == 0)]

    def save(self, folder: Path) -> None:
        """Writes the sample to a folder."""
        arrays = {f"ids_{i}": self._ids[name] for i, name in enumerate(self.fields)}
        np.savez(
            folder / CATEGORIES_FILE,
            format=np.array(_FORMAT),
            fields=np.array(self.fields, np.str_),
            bits=np.array([self._bits[name] for name in self.fields], np.int64),
            **arrays,  # type: ignore[arg-type]
        )

    @classmethod
    def load(cls, folder: Path) -> KnownCategories | None:
        """Reads the sample of a folder.

        Args:
            folder: the folder of a run or of an exported scorer.

        Returns:
            The sample; None if the folder was written without one.

        Raises:
            ValueError: the file is damaged.
        """
        return read_arrays(folder / CATEGORIES_FILE, cls._of)

    @classmethod
    def _of(cls, saved: Mapping[str, Array]) -> KnownCategories:
        if int(saved["format"]) != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {saved['format']}")
        made = cls([str(name) for name in saved["fields"]])
        for i, name in enumerate(made.fields):
            made._bits[name] = int(np.clip(saved["bits"][i], 0, 62))
            made._ids[name] = np.unique(saved[f"ids_{i}"].astype(np.int64))
        return made


def read_arrays(path: Path, make: Callable[[Mapping[str, Array]], _T]) -> _T | None:
    """What a file of arrays holds.

    Args:
        path: of the file, as `np.savez` writes it.
        make: makes the result of the arrays by name.

    Returns:
        The result of `make`; None if there is no file.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as saved:
            return make(saved)
    except Exception as e:  # NumPy and zipfile have many
        raise ValueError(f"{path}: damaged, or of another version: {e}") from e
