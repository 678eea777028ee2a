"""A key for each example of a source, the same in every pass, in any order and on every worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from twml_ops import core
from twml_ops.data.block import Block
from twml_ops.data.units import Piece, Unit

ROW_KEYS = "row_keys"
_UNIT_BITS = 62


class KeyedPiece(Piece):
    """A piece whose blocks have the column `ROW_KEYS`.

    The keys of a unit are consecutive integers, the first of which is a hash of the place of the
    unit. They do not depend on the content, so equal examples have different keys.

    Args:
        whole: the piece.
        index: its position among the pieces of the source.
        count: called with the bytes of each unit that is parsed.
    """

    def __init__(self, whole: Piece, index: int, count: Callable[[int], None]) -> None:
        super().__init__(whole.number)
        self._whole, self._index, self._count = whole, index, count

    def units(self) -> Iterator[Unit]:
        """The units of the piece, whose blocks have keys."""
        for number, unit in enumerate(self._whole.units()):
            yield _keyed(unit, _hash(self._index, number), self._count)

    def unit_rows(self) -> list[int]:
        """See `Piece`."""
        return self._whole.unit_rows()

    def known_unit_rows(self) -> list[int] | None:
        """See `Piece`."""
        return self._whole.known_unit_rows()

    def remember_unit_rows(self, rows: list[int]) -> None:
        """See `Piece`."""
        self._whole.remember_unit_rows(rows)


def _keyed(unit: Unit, first: int, count: Callable[[int], None]) -> Unit:
    def parse() -> Iterator[Block]:
        count(unit.size)
        row = first
        for block in unit.blocks():
            keys = np.arange(row, row + len(block), dtype=np.int64)
            yield dataclasses.replace(block, columns={**block.columns, ROW_KEYS: keys})
            row += len(block)

    return Unit(parse, unit.rows, unit.size)


def _hash(piece: int, unit: int) -> int:
    seed = int(core.hash_ids(np.array([piece]), _UNIT_BITS, 0)[0])
    return int(core.hash_ids(np.array([unit]), _UNIT_BITS, seed)[0])
