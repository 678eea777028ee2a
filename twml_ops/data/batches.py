"""Turns blocks of any size into `tf.data` batches, for all readers.

NumPy cuts one batch in each call, and a TensorFlow graph brings it into the form of a layout. This
is cheaper than cutting larger pieces in TensorFlow, since a batch stays in the CPU cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from twml_ops import _tensorflow_import
from twml_ops.data.block import Block
from twml_ops.data.layouts import Layout
from twml_ops.data.order import regroup

if TYPE_CHECKING:
    import tensorflow as tf


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
        blocks: function that starts pass n over the examples, where n begins with 0.
        layout: the form of the features.
        batch_size: examples in a batch, B.
        drop_remainder: leave out a last short batch.
        num_examples: number of examples of a pass, which gives the dataset its length; None: both
            are unknown.
        repeat: whether each iteration goes through the passes one after the other, without end.
    """
    import tensorflow as tf

    passes = itertools.count()

    def batches() -> Iterator[Any]:
        _tensorflow_import.keep_freed_memory()
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


def eager(blocks: Iterable[Block], layout: Layout, batch_size: int) -> Iterator[Any]:
    """The elements of `dataset` in one pass, made without a pipeline.

    Args:
        blocks: the examples.
        layout: the form of the features.
        batch_size: examples in a batch.
    """
    import tensorflow as tf

    for batch in regroup(iter(blocks), batch_size):
        with tf.device("CPU:0"):
            element = tf.nest.map_structure(tf.convert_to_tensor, layout.arrays(batch))
            element = layout.finish(*element)
        yield element
