"""Columns of raw data, NumPy arrays of text and numbers, to the features that a model takes.

The NumPy twin of `twml_ops/export/raw_columns.py`, for scorers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twml_ops import _core
from twml_ops._raw_columns import numbers_of, strings_of

Array = NDArray[Any]

_MISSING = -1
_BUCKETS = 1 << 62


class RawColumns:
    """Makes features of columns.

    Args:
        layout: "ragged" or "fields", the layout of the features.
        numbers: names of the columns with numbers.
        categories: for each column with categories, in the order of the schema, a mapping with its
            `name`, the two integers of the `key` of its hash, whether it is a `bag`, and the
            column of its `weights` or None.
        sparse: whether there are raw sparse features in the columns `ids` and `values`.

    Attributes:
        columns: names of the arrays that `features` takes.
        outputs: names of the arrays that it returns.
    """

    def __init__(
        self,
        layout: str,
        numbers: list[str],
        categories: list[dict[str, Any]],
        sparse: bool,
    ) -> None:
        self._layout, self._numbers, self._sparse = layout, numbers, sparse
        self._categories = categories
        self.outputs = self._names_of_features()
        bags = [c for c in categories if c["bag"]]
        self.columns = [*numbers, *(c["name"] for c in categories)]
        self.columns += [f"{c['name']}_row_splits" for c in bags]
        self.columns += [c["weights"] for c in bags if c["weights"] is not None]
        self.columns += ["ids", "values", "ids_row_splits"] if sparse else []

    def _names_of_features(self) -> list[str]:
        numbers = ["continuous", "continuous_present"]
        groups: dict[str, tuple[str, ...]] = {}
        if self._sparse:
            groups["sparse"] = ("ids", "values")
        if self._layout == "ragged":
            groups |= {"continuous": ("ids", "values")} if self._numbers else {}
            groups |= {"categorical": ("ids",)} if self._categories else {}
            numbers, fields = [], False
        else:
            for column in self._categories:
                if column["bag"]:
                    weighted = column["weights"] is not None
                    groups[f"bag_{column['name']}"] = ("ids", "values") if weighted else ("ids",)
            fields = not all(column["bag"] for column in self._categories)
        names = [f"{g}_{part}" for g, parts in groups.items() for part in (*parts, "row_splits")]
        names += numbers if self._numbers else []
        return names + (["categorical"] if fields else [])

    def features(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """The features of the columns of a batch, as flat arrays by name.

        Args:
            given: column → array; other entries are ignored.

        Raises:
            ValueError: a column is missing, or has another length or type.
        """
        missing = [name for name in self.columns if name not in given]
        if missing:
            raise ValueError(f"the columns {missing} are missing, got {sorted(given)}")
        columns = {name: np.asarray(given[name]) for name in self.columns}
        self._check_shapes(columns)
        features: dict[str, Array] = {}
        if self._numbers:
            self._add_numbers(features, columns)
        if self._categories:
            add = self._add_fields if self._layout == "fields" else self._add_rows
            add(features, columns)
        if self._sparse:
            features["sparse_ids"] = columns["ids"]
            features["sparse_values"] = columns["values"].astype(np.float32)
            features["sparse_row_splits"] = columns["ids_row_splits"]
        return features

    def _check_shapes(self, columns: dict[str, Array]) -> None:
        rows = {}
        bags = [c for c in self._categories if c["bag"]]
        entries = {c["name"] for c in bags} | {c["weights"] for c in bags}
        entries |= {"ids", "values"} if self._sparse else set()
        for name, column in columns.items():
            if column.ndim == 2 and column.shape[1] == 1:
                columns[name] = column = column[:, 0]
            if column.ndim != 1:
                raise ValueError(f"column {name!r} must have the shape [B], got {column.shape}")
            if name not in entries:
                rows[name] = len(column) - name.endswith("_row_splits")
        if len(set(rows.values())) > 1:
            raise ValueError(f"columns must have the same number of rows, got {rows}")

    def _add_numbers(self, features: dict[str, Array], columns: dict[str, Array]) -> None:
        table = np.stack([numbers_of(n, columns[n]) for n in self._numbers], axis=1)
        present = ~np.isnan(table)
        if self._layout == "fields":
            features["continuous"] = np.where(present, table, np.float32(0))
            features["continuous_present"] = present
            return
        features["continuous_ids"] = np.nonzero(present)[1]
        features["continuous_values"] = table[present]
        features["continuous_row_splits"] = _splits(present.sum(axis=1))

    def _add_fields(self, features: dict[str, Array], columns: dict[str, Array]) -> None:
        fields = []
        for column in self._categories:
            name, ids = column["name"], _hashes(column, columns)
            if not column["bag"]:
                fields.append(ids)
                continue
            there = ids != _MISSING
            splits = columns[f"{name}_row_splits"]
            features[f"bag_{name}_ids"] = ids[there]
            features[f"bag_{name}_row_splits"] = np.concatenate([[0], np.cumsum(there)])[splits]
            if column["weights"] is not None:
                weights = numbers_of(column["weights"], columns[column["weights"]])
                features[f"bag_{name}_values"] = weights[there]
        if fields:
            features["categorical"] = np.stack(fields, axis=1)

    def _add_rows(self, features: dict[str, Array], columns: dict[str, Array]) -> None:
        """All categories that are present, row by row in the order of the columns."""
        ids, rows, count = [], [], 0
        for column in self._categories:
            ids.append(_hashes(column, columns))
            if column["bag"]:
                lengths = np.diff(columns[f"{column['name']}_row_splits"])
            else:
                lengths = np.ones(len(ids[-1]), np.int64)
            count = len(lengths)
            rows.append(np.repeat(np.arange(count), lengths))
        flat, row = np.concatenate(ids), np.concatenate(rows)
        flat, row = flat[flat != _MISSING], row[flat != _MISSING]
        features["categorical_ids"] = flat[np.argsort(row, kind="stable")]
        features["categorical_row_splits"] = _splits(np.bincount(row, minlength=count))


def _splits(lengths: Array) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _hashes(column: dict[str, Any], columns: dict[str, Array]) -> Array:
    """The ids of a column's categories, -1 where they are missing."""
    data, offsets = strings_of(column["name"], columns[column["name"]])
    first, second = column["key"]
    typed = bool(column.get("typed", False))
    hashed = {"key": (first, second), "num_buckets": _BUCKETS}
    ids = _core.hash_strings(data, offsets, **hashed, typed=typed)
    if typed:  # null values are as the empty text
        ids[ids == _core.hash_strings(data[:0], [0, 0], **hashed)] = _MISSING
    ids[np.diff(offsets) == 0] = _MISSING
    return ids
