"""Which rows of its tables a training reads: how many, how often, and how soon again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from twml_ops._core import ReuseDistances
from twml_ops.data import Schema

ALL = "all in one table"
"""Name of the table that has the rows of all fields."""

SPARSE = "sparse ids"
_MAX_IDS = 1 << 18
_SALT = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio

Array = npt.NDArray[Any]


class AccessesOfTable:
    """The accesses to the rows of one table.

    A step reads each row of its batch once, so an id counts once a batch, where it occurs first.

    Args:
        name: the name of the table.
        max_ids: up to how many ids the results are exact; see `twml_ops.core.ReuseDistances`.

    Attributes:
        name: the name of the table.
        entries: ids of all examples, repeated ones included.
        most_in_batch: the largest number of rows that one step read.
    """

    def __init__(self, name: str, max_ids: int = _MAX_IDS) -> None:
        self.name = name
        self.entries = self.most_in_batch = 0
        self._distances = ReuseDistances(max_ids)

    def add(self, ids: Array) -> None:
        """Adds the ids of a batch.

        Args:
            ids: int64 [K], in the order of the examples.
        """
        unique, first = np.unique(ids, return_index=True)
        self._distances.add(ids[np.sort(first)])
        self.entries += len(ids)
        self.most_in_batch = max(self.most_in_batch, len(unique))

    @property
    def rows(self) -> int:
        """Distinct ids; an estimate if there are more than `max_ids`."""
        return int(self._distances.distinct_ids)

    @property
    def reads(self) -> int:
        """Rows that all steps together read."""
        return int(self._distances.accesses)

    @property
    def is_exact(self) -> bool:
        """Whether there are at most `max_ids` ids, so that nothing is an estimate."""
        return bool(self._distances.sampled_one_in == 1)

    def reuse_distance(self, share: float) -> int | None:
        """A quantile of the number of distinct other rows that are read before a row is read again.

        Args:
            share: the share of the reads of rows that were read before, in [0, 1].

        Returns:
            The distance; None if no row was read twice.
        """
        distance = int(self._distances.quantile(share))
        return None if distance < 0 else distance

    def hit_rates(self, sizes: npt.ArrayLike) -> Array:
        """The share of the reads that a cache of the least recently used rows would serve.

        It is that of a cache that is empty at first, so the first read of each row is a miss.

        Args:
            sizes: int64 [S], rows that the cache holds.

        Returns:
            float64 [S].
        """
        hits = self._distances.hits(np.asarray(sizes, np.int64))
        return np.asarray(hits / max(self.reads, 1))


class TableAccesses:
    """The accesses of a training to its tables: one for each field, and one for all.

    Tables of fields are the tables of `layers.FieldEmbedding`, `GroupedSparseLinear` and the models
    on fields; the table of all fields is that of `SparseLinear`. Numbers have no rows before they
    are discretized, and few after it, so they are left out.

    Args:
        schema: the features.
        max_ids: the largest number of ids of each table, up to how many ids the results are exact.

    Attributes:
        examples: number of examples so far.
        batches: number of batches so far.

    Raises:
        ValueError: the schema has no categories and no sparse ids.
    """

    def __init__(self, schema: Schema, max_ids: int = _MAX_IDS) -> None:
        names = [*schema.categorical, *([SPARSE] if schema.sparse_dim else [])]
        if not names:
            raise ValueError("schema must have categories or sparse ids, got only numbers")
        self.examples = self.batches = 0
        self._schema = schema
        self._tables = {name: AccessesOfTable(name, max_ids) for name in names}
        self._all = AccessesOfTable(ALL, max_ids) if len(names) > 1 else None

    @property
    def tables(self) -> list[AccessesOfTable]:
        """One table for each field, in the order of the schema."""
        return list(self._tables.values())

    @property
    def whole(self) -> AccessesOfTable | None:
        """The table of all fields together; None if there is only one field."""
        return self._all

    def add(self, features: Mapping[str, Any], examples: int) -> None:
        """Adds a batch.

        Args:
            features: the features of the layout "fields" of `twml_ops.data.Source.dataset`; tensors
                or arrays.
            examples: number of examples in the batch.
        """
        self.examples += examples
        self.batches += 1
        together = []
        for number, (name, table) in enumerate(self._tables.items()):
            ids = self._ids_of(name, features)
            table.add(ids)
            # Fields may have equal ids; equal ids of two fields are different rows.
            together.append(ids + np.int64(number * _SALT % 2**63))
        if self._all is not None:
            self._all.add(np.concatenate(together))

    def _ids_of(self, name: str, features: Mapping[str, Any]) -> Array:
        if name == SPARSE:
            return _flat(features["sparse_ids"])
        if name in self._schema.bags:
            return _flat(features[f"{self._schema.bag_arrays(name)}_ids"])
        column = np.asarray(features["categorical"])[:, self._schema.fields.index(name)]
        return np.asarray(column[column >= 0])


def _flat(ragged: Any) -> Array:
    return np.asarray(getattr(ragged, "flat_values", ragged))
