"""The common batcher: blocks of any size in, `tf.data` batches out.

NumPy cuts the batches, one call a batch, and a graph gives them the form of a layout. That is
cheaper than cutting larger pieces in TensorFlow, as a batch stays in the cache. Shuffling
permutes the rows of a window, so a source that fits one window is shuffled as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops.data.block import Block
from twml_ops.data.layouts import Layout

WINDOW_ROWS = 1 << 19


def dataset(
    blocks: Callable[[], Iterator[Block]],
    layout: Layout,
    batch_size: int,
    *,
    seed: int | None,
    drop_remainder: bool,
    num_examples: int | None,
) -> tf.data.Dataset:
    """Batches `(features, labels)` as `Source.dataset` describes them.

    Args:
        blocks: starts a pass over the examples.
        layout: the form of the features.
        batch_size: examples in a batch, B.
        seed: of the order of the examples; None keeps them in order.
        drop_remainder: leave out a last short batch.
        num_examples: if known, the dataset knows its length.
    """
    passes = itertools.count()

    def batches() -> Iterator[Any]:
        rng = None if seed is None else np.random.default_rng([seed, next(passes)])
        for batch in _batches(blocks(), batch_size, rng):
            if len(batch) == batch_size or not drop_remainder:
                yield layout.arrays(batch)

    static = batch_size if drop_remainder else None
    result = tf.data.Dataset.from_generator(batches, output_signature=layout.signature(static))
    if num_examples is not None:
        short = 0 if drop_remainder else batch_size - 1
        count = (num_examples + short) // batch_size
        result = result.apply(tf.data.experimental.assert_cardinality(count))
    return result.map(layout.finish).prefetch(tf.data.AUTOTUNE)


def _batches(
    blocks: Iterator[Block], batch_size: int, rng: np.random.Generator | None
) -> Iterator[Block]:
    """Blocks of exactly `batch_size` examples; the last one may be shorter."""
    per_window = 1 if rng is None else max(1, WINDOW_ROWS // batch_size)
    for window in _regroup(blocks, batch_size * per_window):
        order = None if rng is None else rng.permutation(len(window))
        for start in range(0, len(window), batch_size):
            stop = min(start + batch_size, len(window))
            yield window.slice(start, stop) if order is None else window.take(order[start:stop])


def _regroup(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """The same examples in blocks of exactly `rows`, the last one of what is left."""
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
