"""The common batcher: blocks of any size in, `tf.data` batches out.

NumPy cuts the batches, one call a batch, and a graph gives them the form of a layout. That is
cheaper than cutting larger pieces in TensorFlow, as a batch stays in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from twml_ops.data.block import Block
from twml_ops.data.layouts import Layout
from twml_ops.data.order import regroup


def dataset(
    blocks: Callable[[int], Iterator[Block]],
    layout: Layout,
    batch_size: int,
    *,
    drop_remainder: bool,
    num_examples: int | None,
    repeat: bool = False,
) -> tf.data.Dataset:
    """Batches `(features, labels)` as `Source.dataset` describes them.

    Args:
        blocks: starts the n-th pass over the examples, n from 0.
        layout: the form of the features.
        batch_size: examples in a batch, B.
        drop_remainder: leave out a last short batch.
        num_examples: in each pass; if known, the dataset knows its length.
        repeat: each iteration has all passes, one after the other, without end.
    """
    passes = itertools.count()

    def batches() -> Iterator[Any]:
        for n in itertools.count() if repeat else [next(passes)]:
            for batch in regroup(blocks(n), batch_size):
                if len(batch) == batch_size or not drop_remainder:
                    yield layout.arrays(batch)

    static = batch_size if drop_remainder else None
    result = tf.data.Dataset.from_generator(batches, output_signature=layout.signature(static))
    if repeat:
        result = result.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    elif num_examples is not None:
        short = 0 if drop_remainder else batch_size - 1
        count = (num_examples + short) // batch_size
        result = result.apply(tf.data.experimental.assert_cardinality(count))
    finish = tf.autograph.experimental.do_not_convert(layout.finish)  # it is plain Python
    return result.map(finish).prefetch(tf.data.AUTOTUNE)
