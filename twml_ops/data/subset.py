"""Views of a source: the examples for which a function is true, such as some negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from twml_ops import core
from twml_ops.data.block import Array, Block
from twml_ops.data.order import UnitOfPiece, without_first
from twml_ops.data.source import Source, View
from twml_ops.data.units import Piece, Unit

_BITS = 32


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


class Subset(View):
    """The examples of another source for which a function is true.

    It is kept in memory only if the other source is not.

    Args:
        whole: the source viewed.
        name: the name of the subset.
        keep: (where a block begins, the block) → bool [R], for the block's examples.
    """

    def __init__(self, whole: Source, name: str, keep: Keep) -> None:
        super().__init__(whole, name)
        self._keep = keep

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

        return Unit(parse, lambda: sum(map(len, parse())), unit.size)


def random_rows(share: float, seed: int) -> Keep:
    """Whether each example is in a random sample, which its place alone determines."""

    def keep(place: Place, block: Block) -> Array:
        unit_seed = seed
        for number in (place.piece, place.unit):
            unit_seed = int(core.hash_ids(np.array([number]), 62, unit_seed)[0])
        return is_drawn(np.arange(place.row, place.row + len(block)), share, unit_seed)

    return keep


def is_drawn(keys: Array, share: float, seed: int) -> Array:
    """Whether each integer key is in a random sample, which its hash determines."""
    hashed = core.hash_ids(np.ascontiguousarray(keys, np.int64), _BITS, seed)
    return np.asarray(hashed < share * 2**_BITS)


def sample_negatives(source: Source, rate: float, seed: int = 0) -> Source:
    """Leaves out random negative examples. Nothing is copied: the result is a view.

    A model that is trained on the result predicts probabilities that are too high. The odds
    p / (1 - p) that it predicts, times `rate`, are the odds in the source. See section 6.3 of He et
    al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014.

    Args:
        source: labelled examples.
        rate: share of the negatives to keep, in (0, 1].
        seed: seed of the random choice.

    Returns:
        All positives and the negatives that were drawn, in the order of the source.

    Raises:
        ValueError: `rate` is out of range, or the source has several labels.
    """
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"rate must be greater than 0 and at most 1, got {rate}")
    labels = source.schema.labels
    if len(labels) > 1:
        raise ValueError(f"{source.name}: expected one label, got {', '.join(labels)}")
    drawn = random_rows(rate, seed)

    def keep(place: Place, block: Block) -> Array:
        return (block.labels > 0) | drawn(place, block)

    return Subset(source, f"{source.name} (a random {rate:.3g} of the negatives)", keep)
