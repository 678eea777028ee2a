"""Products whose order of additions does not depend on how the rows of a table are divided.

The entries of an example are divided into classes by their id mod `ROW_CLASSES`. The product is the
sum of the products of the classes, in a tree: classes c and c + C / 2 of C are added first, until
one is left. R parts of the rows, a power of two, have C / R classes each, and these are a subtree:
a server adds the products of its classes, and the worker the products of the servers. So the bits
are equal for tables on one server, on several by row or by column, and for replicated ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops, placement
from twml_ops.distribute.parameter_server.encoding import ShardEntries, num_rows
from twml_ops.placement.entries import CsrEntries

ROW_CLASSES = 8
"""The number of classes, a power of two, which is the largest number of parts of the rows."""


def add_halves(products: Sequence[tf.Tensor] | tf.Tensor) -> tf.Tensor:
    """Adds a power of two of products: the first half and the second half, until one is left.

    Args:
        products: float32 [C, B, D], or C tensors [B, D].

    Returns:
        float32 [B, D].
    """
    count = len(products) if isinstance(products, Sequence) else products.shape[0]
    # The slices prevent TensorFlow from making one AddN of additions that follow one another.
    sums = tf.stack(list(products)) if isinstance(products, Sequence) else products
    while count > 1:
        count //= 2
        sums = sums[:count] + sums[count:]
    return sums[0]


def multiply(
    product_of: Callable[[ShardEntries], tf.Tensor],
    entries: ShardEntries,
    binary: bool,
    columns: int,
    classes: int,
) -> tf.Tensor:
    """Multiplies a batch with a table, or with a part of its rows, in classes.

    Args:
        product_of: Entries -> the product, float32 [B, D].
        entries: The batch, with ids that count the rows of the part.
        binary: Whether the entries have no values.
        columns: D.
        classes: The number of classes of the part; 1: the product is not divided.

    Returns:
        float32 [B, D].
    """
    if classes == 1:
        return product_of(entries)
    ids, values, splits = entries
    size = num_rows(splits)
    numbers = tf.cast(ids % classes, tf.int32)
    of_entries = tf.repeat(tf.range(size), splits[1:] - splits[:-1])
    # All entries of class 0 by example, then all of class 1, and so on, each in the given order.
    order = tf.concat(tf.dynamic_partition(tf.range(tf.size(ids)), numbers, classes), axis=0)
    segments = tf.gather(numbers * size + of_entries, order)
    by_class = tf.searchsorted(segments, tf.range(classes * size + 1), out_type=tf.int64)
    own = values if binary else tf.gather(values, order)
    product = product_of(ShardEntries(tf.gather(ids, order), own, by_class))
    return add_halves(tf.reshape(product, [classes, size, columns]))


class ReplicatedInClasses(placement.Placement):
    """The placement of a table of which each worker has a copy."""

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement.sparse_linear`."""
        ids, values, splits = entries
        binary = values is None

        def product_of(own: ShardEntries) -> tf.Tensor:
            weights = None if binary else own.values
            return ops.sparse_linear(own.ids, weights, own.row_splits, table)

        given = ShardEntries(ids, tf.zeros([0]) if values is None else values, splits)
        return multiply(product_of, given, binary, table.shape[1], ROW_CLASSES)


REPLICATED_IN_CLASSES = ReplicatedInClasses()
