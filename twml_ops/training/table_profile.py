"""How a training on a data set reads its tables, and where they should be."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import tensorflow as tf

from twml_ops.analysis import AccessesOfTable, TableAccesses
from twml_ops.data import Source
from twml_ops.planning import TableDemand, TierChoice, choose_tiers
from twml_ops.training.errors import UserError


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


WEIGHT_BYTES = 4
_SIZES_PER_OCTAVE = 4


@dataclasses.dataclass(frozen=True)
class TablesOptions:
    """What the user chose; see `twml-ops tables --help`.

    Attributes:
        data: SOURCE of the examples.
        units: weights of a row.
        slots: optimizer slots per weight.
        batch_size: examples in a batch.
        examples_per_second: speed of the training.
        memory: MB for tables and caches; None: half of this machine's memory.
        file_reads: rows a second that the device of the file can read; None: not known.
        shuffle: whether examples are read in the order of `train`.
        seed: the seed of the order.
        max_ids: ids of a field up to which all results are exact.
    """

    data: str
    units: int
    slots: int
    batch_size: int
    examples_per_second: float
    memory: float | None
    file_reads: float | None
    shuffle: bool
    seed: int
    max_ids: int


def profile_of(source: Source, options: TablesOptions) -> DataProfile:
    """Profiles the accesses of one pass over a source.

    Args:
        source: the examples.
        options: what a training is like.

    Returns:
        The profile, with the choice for each field.

    Raises:
        UserError: the source has no categories and no sparse ids, or the memory is too small.
    """
    accesses = _accesses_of(source, options)
    memory = _memory_bytes(options.memory)
    row_bytes = options.units * WEIGHT_BYTES * (1 + options.slots)
    steps_per_second = options.examples_per_second / options.batch_size
    reads_per_second = [
        table.reads / accesses.batches * steps_per_second for table in accesses.tables
    ]
    demands = [
        _demand(table, row_bytes, rate)
        for table, rate in zip(accesses.tables, reads_per_second, strict=True)
    ]
    try:
        choices = choose_tiers(demands, memory)
    except ValueError as e:
        raise UserError(f"--memory: {e}") from e
    tables = [
        _profile(table, row_bytes, rate, options.examples_per_second, accesses.examples)
        for table, rate in zip(accesses.tables, reads_per_second, strict=True)
    ]
    whole = accesses.whole
    return DataProfile(
        data=source.name,
        examples=accesses.examples,
        batches=accesses.batches,
        batch_size=options.batch_size,
        shuffled=options.shuffle,
        row_bytes=row_bytes,
        examples_per_second=options.examples_per_second,
        memory_bytes=memory,
        file_reads_per_second=options.file_reads,
        tables=tables,
        choices=choices,
        whole=None
        if whole is None
        else _profile(
            whole,
            row_bytes,
            whole.reads / accesses.batches * steps_per_second,
            options.examples_per_second,
            accesses.examples,
        ),
    )


def _accesses_of(source: Source, options: TablesOptions) -> TableAccesses:
    try:
        accesses = TableAccesses(source.schema, options.max_ids)
    except ValueError as e:
        raise UserError(f"{source.name}: {e}") from e
    batches = source.dataset(
        options.batch_size, shuffle=options.shuffle, seed=options.seed, layout="fields"
    )
    for features, labels, *_ in batches:
        accesses.add(features, int(tf.nest.flatten(labels)[0].shape[0]))
    return accesses


def _sizes(rows: int) -> np.ndarray:
    """Cache sizes from 1 to the number of rows, each about a fifth larger than the one before."""
    octaves = np.arange(0, np.log2(max(rows, 1)) + 1, 1 / _SIZES_PER_OCTAVE)
    sizes = np.unique(np.round(2**octaves).astype(np.int64))
    return np.append(sizes[sizes < rows], max(rows, 1))


def _demand(table: AccessesOfTable, row_bytes: int, reads_per_second: float) -> TableDemand:
    sizes = _sizes(table.rows)
    return TableDemand(
        table.name,
        table.rows,
        row_bytes,
        reads_per_second,
        table.most_in_batch,
        sizes,
        table.hit_rates(sizes),
    )


def _profile(
    table: AccessesOfTable,
    row_bytes: int,
    reads_per_second: float,
    examples_per_second: float,
    examples: int,
) -> TableProfile:
    sizes = _sizes(table.rows)
    return TableProfile(
        name=table.name,
        rows=table.rows,
        is_exact=table.is_exact,
        entries_per_example=table.entries / max(examples, 1),
        reads_per_example=reads_per_second / examples_per_second,
        bytes_per_second=reads_per_second * row_bytes,
        table_bytes=table.rows * row_bytes,
        reuse_distances={q: table.reuse_distance(q) for q in (0.5, 0.9, 0.99)},
        cache_rows=sizes.tolist(),
        hit_rates=table.hit_rates(sizes).tolist(),
    )


def _memory_bytes(megabytes: float | None) -> int:
    if megabytes is not None:
        return int(megabytes * 1e6)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
