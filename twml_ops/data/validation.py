"""A part of the training data for validation, on which choices are made.

The part is to differ from the rest as the data to predict will differ from the training data. A
source that knows how its evaluation data differ (`flights`: the end of every month) divides itself.
Otherwise the latest examples are taken if there is a time or an order of time, and random ones if
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from twml_ops import core
from twml_ops._category_hash import MISSING
from twml_ops.data.block import Array, Block
from twml_ops.data.errors import DataError
from twml_ops.data.order import UnitOfPiece, without_first
from twml_ops.data.schema import Schema
from twml_ops.data.source import CACHE_BYTES, Source
from twml_ops.data.units import Piece, Unit

Method = Literal["auto", "time", "order", "random", "group"]
METHODS: tuple[Method, ...] = ("auto", "time", "order", "random", "group")
_BITS = 32
_SAMPLE_SIZE = 1 << 20


class Place(NamedTuple):
    """Where a block of a source begins. It does not depend on the order of reading.

    Attributes:
        piece: number of the piece.
        unit: number of the unit in the piece.
        row: number of the example in the unit.
    """

    piece: int
    unit: int
    row: int


Keep = Callable[[Place, Block], Array]


class TrainingParts(NamedTuple):
    """Training data in two parts.

    Attributes:
        fit: the examples to fit a model on.
        validation: the others. Its name says which they are.
    """

    fit: Source
    validation: Source


def split_for_validation(
    source: Source, method: Method = "auto", share: float = 0.1, seed: int = 0
) -> TrainingParts:
    """Takes a part of training data away for validation.

    The examples are not copied: each part is a view of the source. A source whose parsed form is
    small enough to be kept in memory is read once.

    Args:
        source: the training data.
        method: "time": the latest examples by the column `schema.time`; those without a time are
            not among them. "order": the last examples in file order. "random": random examples.
            "group": all examples of random groups, the values of the column `schema.group`; an
            example without a group is a group of its own. "auto": as the source divides itself if
            it does; else "time" if the schema has a time, "order" if the source is in order of
            time, else "random".
        share: share of the examples that is taken, approximately. A source that divides itself
            does not use it.
        seed: of the random choice. It depends on nothing else: the same examples are taken by
            every process and in every run.

    Returns:
        The two parts.

    Raises:
        ValueError: `method` is unknown, the schema lacks the column that it needs, `share` is not
            between 0 and 1, or a part would be empty.
        FileNotFoundError: the data is not there.
        DataError: the data cannot be read.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    schema = source.schema
    if method == "auto":
        own = source.own_validation()
        if own is not None:
            return TrainingParts(*own)
        method = "time" if schema.time else "order" if source.in_order_of_time else "random"
    for needed, column in (("time", schema.time), ("group", schema.group)):
        if method == needed and column is None:
            raise ValueError(f"{source.name}: the schema has no {needed}, so no split by {needed}")
    _read_into_memory(source)
    if method == "order":
        return TrainingParts(*Source.split(source, share))
    if method == "time":
        start = _latest(source, share)
        keep: Keep = lambda _, block: block.columns["time"] >= start  # noqa: E731  NaN is not
        name = f"{source.name} ({schema.time} from {start:.10g} on)"
    else:
        keep = _random_groups(share, seed) if method == "group" else _random_rows(share, seed)
        what = f"of the values of {schema.group}" if method == "group" else "of the examples"
        name = f"{source.name} (a random {share:.3g} {what})"
    validation = Subset(source, name, keep)
    count = sum(map(len, validation.blocks()))  # which are kept, if they fit, to be read often
    total = source.num_examples()
    if count in (0, total):
        raise ValueError(
            f"{source.name}: {total} examples cannot be divided by {method} with the share "
            f"{share:g}: a part would be empty"
        )
    fit = Subset(source, f"{source.name} (the rest)", lambda place, block: ~keep(place, block))
    fit._num_examples = total - count  # without a pass
    return TrainingParts(fit, validation)


class Subset(Source):
    """The examples of another source for which a function is true.

    It is kept in memory only if the other source is not.

    Args:
        whole: the source viewed.
        name: of the subset.
        keep: (where a block begins, the block) → bool [R], for the block's examples.
    """

    def __init__(self, whole: Source, name: str, keep: Keep) -> None:
        super().__init__(name)
        self._whole, self._keep = whole, keep

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return self._whole.schema

    @property
    def in_order_of_time(self) -> bool:
        """See `Source`."""
        return self._whole.in_order_of_time

    def _make_pieces(self) -> Sequence[Piece]:
        pieces = self._whole._pieces()
        return [_FilteredPiece(piece, i, self._keep) for i, piece in enumerate(pieces)]

    def _parsed(self, units: Iterator[UnitOfPiece], skip: int) -> Iterator[Block]:
        if self._whole._cache is None or self._cache is not None:
            yield from super()._parsed(units, skip)
            return
        for _, unit in without_first(units, skip):
            yield from unit.blocks()


class _FilteredPiece(Piece):
    def __init__(self, whole: Piece, index: int, keep: Keep) -> None:
        super().__init__(whole.number)
        self._whole, self._index, self._keep = whole, index, keep

    def units(self) -> Iterator[Unit]:
        known = self._unit_rows or []
        for k, unit in enumerate(self._whole.units()):
            filtered = self._filtered(unit, k)
            yield filtered.with_rows(known[k]) if k < len(known) else filtered

    def _filtered(self, unit: Unit, number: int) -> Unit:
        def parse() -> Iterator[Block]:
            row = 0
            for block in unit.blocks():
                place = Place(self._index, number, row)
                yield block.take(np.flatnonzero(self._keep(place, block)))
                row += len(block)

        return Unit(parse, lambda: sum(map(len, parse())))


def _read_into_memory(source: Source) -> None:
    """Reads a source, so that its views need not parse it again; stops if it is too large."""
    size = 0
    for block in source.blocks():
        size += block.nbytes
        if size > CACHE_BYTES:
            return


def _is_drawn(keys: Array, share: float, seed: int) -> Array:
    """Whether each key is among the share drawn by hash."""
    hashed = core.hash_ids(np.ascontiguousarray(keys, np.int64), _BITS, seed)
    return np.asarray(hashed < share * 2**_BITS)


def _random_rows(share: float, seed: int) -> Keep:
    def keep(place: Place, block: Block) -> Array:
        unit_seed = seed
        for number in (place.piece, place.unit):
            unit_seed = int(core.hash_ids(np.array([number]), 62, unit_seed)[0])
        return _is_drawn(np.arange(place.row, place.row + len(block)), share, unit_seed)

    return keep


def _random_groups(share: float, seed: int) -> Keep:
    random_rows = _random_rows(share, seed)

    def keep(place: Place, block: Block) -> Array:
        groups = block.columns["group"]
        drawn = _is_drawn(groups, share, seed)
        return np.where(groups == MISSING, random_rows(place, block), drawn)

    return keep


def _latest(source: Source, share: float) -> float:
    """The time from which on about `share` of the examples are.

    It is computed from at most 2^20 times: every k-th, with k a power of two. All examples of one
    time are on the same side.

    Raises:
        DataError: there are not two different times.
    """
    step, position = 1, 0
    sample: list[Array] = []
    for block in source.blocks():
        times = block.columns["time"]
        sample.append(times[(-position) % step :: step])
        position += len(times)
        if sum(map(len, sample)) > _SAMPLE_SIZE:
            sample, step = [np.concatenate(sample)[::2]], 2 * step
    every = np.concatenate(sample) if sample else np.zeros(0)
    times = np.sort(every[~np.isnan(every)])
    different, first = np.unique(times, return_index=True)
    if len(different) < 2:
        raise DataError(f"{source.name}: {source.schema.time} has no two different times")
    tails = len(times) - first[1:]  # how many are at each time or later
    best = int(np.abs(tails - share * len(every)).argmin())
    return float(different[1 + best])
