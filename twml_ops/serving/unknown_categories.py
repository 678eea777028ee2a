"""How many categories of requests the model has not seen in training."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twml_ops._known_categories import Count, KnownCategories
from twml_ops._raw_columns import categories, strings_of, times_of
from twml_ops.core import hash_strings, time_parts
from twml_ops.serving.inputs import Arrays

LOG = logging.getLogger(__name__)
_FIRST, _EVERY = 100, 16  # requests that are examined: the first ones, and later one in so many
_ROWS = 64  # of a request


class CategoryCounter:
    """Looks up categories of some requests. Any number of threads may use it.

    Args:
        known: the categories of the training data.
        columns: the categorical columns, as the program of a scorer has them.
    """

    def __init__(self, known: KnownCategories, columns: list[dict[str, Any]]) -> None:
        self._known = known
        self._columns = [c for c in columns if c["name"] in known.fields]
        self._fields = [c["name"] for c in columns if not c["bag"]]
        self._requests = itertools.count()
        self._lock = threading.Lock()
        self._new: dict[str, Count] = {}
        self._all: dict[str, Count] = {}
        self._named: set[str] = set()

    @classmethod
    def load(cls, folder: Path, program: Mapping[str, Any]) -> CategoryCounter | None:
        """The counter of a scorer; None if it does not say which categories are known.

        Raises:
            ValueError: the file of the categories is damaged.
        """
        known = KnownCategories.load(folder)
        raw = program.get("raw")
        return None if known is None or raw is None else cls(known, raw["categories"])

    def look_up(self, arrays: Arrays) -> None:
        """Counts the categories of a request that has been answered, or of none."""
        request = next(self._requests)
        if request >= _FIRST and request % _EVERY:
            return
        counts = {}
        for column in self._columns:
            ids = self._ids(column, arrays)
            if ids is not None:
                counts[column["name"]] = self._known.count(column["name"], ids)
        with self._lock:
            for name, count in counts.items():
                self._new[name] = self._new.get(name, Count()) + count
                self._all[name] = total = self._all.get(name, Count()) + count
                if total.suspicious and name not in self._named:
                    self._named.add(name)
                    LOG.warning(
                        "%d of %d categories of %s were not in the training data",
                        *(total.unknown, total.examined, name),
                    )

    def taken(self) -> dict[str, Count]:
        """The counts since the last call."""
        if not self._new:
            return {}
        with self._lock:
            new, self._new = self._new, {}
        return new

    def _ids(self, column: dict[str, Any], arrays: Arrays) -> Any:
        """The ids of a column in the first rows of a request, which has it as text or as ids."""
        name, time = column["name"], column.get("time")
        given = name if time is None else time["column"]
        if given in arrays:
            texts = categories(arrays[given])[:_ROWS].ravel()
            data, offsets = strings_of(given, texts if time is None else times_of(given, texts))
            if time is not None:
                parts = time_parts(data, offsets, time["part"], time["unit"])
                texts = np.array([str(part) if part >= 0 else "" for part in parts], object)
                data, offsets = strings_of(name, texts)
            key, typed = tuple(column["key"]), column.get("typed", False)
            hashes = hash_strings(data, offsets, key, typed=typed)
            empty = hash_strings(data[:0], [0, 0], key)
            return np.where(hashes == empty, -1, hashes)
        if column["bag"]:
            ids = arrays.get(f"{column.get('arrays', 'bag_' + name)}_ids")
            return None if ids is None else np.asarray(ids)[:_ROWS]
        table = arrays.get("categorical")
        return None if table is None else np.asarray(table)[:_ROWS, self._fields.index(name)]
