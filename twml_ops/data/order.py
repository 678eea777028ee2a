"""The order of the examples in an epoch.

Shuffling takes the units of all files in random order and permutes the examples of windows, so a
source that fits one window is shuffled as a whole, and a larger one is mixed across its files. A
compressed file can only be read from its beginning: the units of such files stay in order, but
units of several files alternate at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from twml_ops.data.block import Block
from twml_ops.data.units import Piece, Unit

WINDOW_ROWS = 1 << 19
_OPEN_PIECES = 8

UnitOfPiece = tuple[int, Unit]  # the position of the piece among all, one of its units


def in_order(pieces: Sequence[Piece]) -> Iterator[UnitOfPiece]:
    """The units, piece by piece."""
    for index, piece in enumerate(pieces):
        for unit in piece.units():
            yield index, unit


def shuffled(pieces: Sequence[Piece], seed: int, epoch: int) -> Iterator[UnitOfPiece]:
    """The units in the random order given by (seed, epoch); units of one piece stay in order.

    A few pieces are open at a time, and each unit is the next one of any of them.
    """
    rng = np.random.default_rng([seed, epoch])
    waiting = iter(rng.permutation(len(pieces)).tolist())
    reading: list[tuple[int, Iterator[Unit]]] = []
    while True:
        while len(reading) < _OPEN_PIECES and (index := next(waiting, None)) is not None:
            reading.append((index, pieces[index].units()))
        if not reading:
            return
        drawn = int(rng.integers(len(reading)))
        index, units = reading[drawn]
        unit = next(units, None)
        if unit is None:
            del reading[drawn]
        else:
            yield index, unit


def without_first(units: Iterator[UnitOfPiece], rows: int) -> Iterator[UnitOfPiece]:
    """The units without their first examples, which are counted, not parsed."""
    for index, unit in units:
        if rows:
            count = unit.rows()
            if count > rows:
                yield index, unit.slice(rows, None)
            rows = max(0, rows - count)
        else:
            yield index, unit


def shuffled_windows(
    blocks: Iterator[Block], seed: int, epoch: int, first: int, start: int, batch_size: int
) -> Iterator[Block]:
    """The examples of each window in the random order given by (seed, epoch, window).

    Args:
        blocks: the examples from the beginning of the window `first` on.
        seed: the seed of the order.
        epoch: number of the pass.
        first: number of the first window.
        start: how many examples of that window are left out.
        batch_size: size of the blocks, which end where a batch ends.
    """
    missing = batch_size
    for window, block in enumerate(regroup(blocks, WINDOW_ROWS), first):
        order = np.random.default_rng([seed, epoch, window]).permutation(len(block))[start:]
        start = 0
        while len(order):
            part, order = order[:missing], order[missing:]
            missing = missing - len(part) or batch_size
            yield block.take(part)


def regroup(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """The examples in blocks of exactly `rows`; the last block has what is left."""
    held: list[Block] = []
    missing = rows
    for block in blocks:
        start = 0
        while start < len(block):
            stop = min(start + missing, len(block))
            held.append(block.slice(start, stop))
            missing -= stop - start
            start = stop
            if not missing:
                yield Block.concat(held)
                held, missing = [], rows
    if held:
        yield Block.concat(held)
