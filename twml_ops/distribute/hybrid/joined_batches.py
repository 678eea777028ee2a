"""Products of several batches with the tables, which the servers compute as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.distribute.hybrid.table_product import TableProduct
from twml_ops.distribute.hybrid.wire import concat_row_splits
from twml_ops.placement.entries import CsrEntries


def join_products(products: Sequence[TableProduct], batches: int) -> list[TableProduct]:
    """Joins the products of several batches, so that each use of a table has one.

    Args:
        products: The products of the batches, one batch after the other, all of the same model.
        batches: The number of batches.

    Returns:
        The products with the examples of all batches; products of a single batch unchanged.
    """
    if batches == 1:
        return list(products)
    uses = len(products) // batches
    joined: dict[tuple[int, ...], CsrEntries] = {}  # tables with the same batch share entries
    found = []
    for use in range(uses):
        parts = list(products[use::uses])
        entries = [part.entries for part in parts if part.entries is not None]
        key = tuple(id(t) for each in entries for t in each)
        if key not in joined:
            joined[key] = _concat(entries)
        found.append(TableProduct(parts[0].table, parts[0].binary, joined[key], parts=parts))
    return found


def join_gradients(products: Sequence[TableProduct]) -> None:
    """Sets the gradients of joined products from the gradients of the products of their batches.

    Args:
        products: Products of `join_products`.
    """
    for product in products:
        gradients = [part.gradient for part in product.parts if part.gradient is not None]
        product.gradient = tf.concat(gradients, axis=0) if gradients else None


def _concat(batches: Sequence[CsrEntries]) -> CsrEntries:
    ids, values, splits = zip(*batches, strict=True)
    together = None if values[0] is None else tf.concat(values, axis=0)
    return tf.concat(ids, axis=0), together, concat_row_splits(splits)
