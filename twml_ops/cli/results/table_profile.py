"""The profile of `twml-ops tables`, independent of how it is shown."""

from __future__ import annotations

import dataclasses

import numpy as np

from twml_ops.planning import TierChoice


@dataclasses.dataclass(frozen=True)
class TableProfile:
    """How a training reads one table.

    Attributes:
        name: the name of the table.
        rows: distinct ids of the data.
        is_exact: whether nothing is an estimate.
        entries_per_example: ids of an example, repeated ones included.
        reads_per_example: rows that a step reads, for each example of its batch.
        bytes_per_second: the bytes per second of the rows that are read; as many are written.
        table_bytes: the bytes of the table with its slots.
        reuse_distances: quantile → distinct other rows that are read before a row is read again;
            None if no row was read twice.
        cache_rows: sizes of caches of the least recently used rows.
        hit_rates: for each size the share of the reads that it serves.
    """

    name: str
    rows: int
    is_exact: bool
    entries_per_example: float
    reads_per_example: float
    bytes_per_second: float
    table_bytes: int
    reuse_distances: dict[float, int | None]
    cache_rows: list[int]
    hit_rates: list[float]

    def hit_rate(self, share: float) -> float:
        """The hit rate of a cache with a share of the rows.

        Args:
            share: the share of the rows, in (0, 1].

        Returns:
            The rate, interpolated between sizes that are about a fifth apart.
        """
        return float(np.interp(share * self.rows, self.cache_rows, self.hit_rates))


@dataclasses.dataclass(frozen=True)
class DataProfile:
    """How a training on a data set reads its tables, and where they should be.

    Attributes:
        data: name of the source.
        examples: number of examples.
        batches: number of batches.
        batch_size: examples in a batch.
        shuffled: whether the order was that of `train`.
        row_bytes: the bytes of a row with its slots.
        examples_per_second: assumed speed of the training.
        memory_bytes: for tables and caches.
        file_reads_per_second: rows that the device of the file can read; None: not known.
        tables: one for each field.
        choices: where each of `tables` goes.
        whole: one table with the rows of all fields; None if there is one field.
    """

    data: str
    examples: int
    batches: int
    batch_size: int
    shuffled: bool
    row_bytes: int
    examples_per_second: float
    memory_bytes: int
    file_reads_per_second: float | None
    tables: list[TableProfile]
    choices: list[TierChoice]
    whole: TableProfile | None

    @property
    def misses_per_second(self) -> float:
        """Rows that are read from files, of all tables."""
        return sum(choice.misses_per_second for choice in self.choices)
