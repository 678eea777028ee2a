"""Stock ops for serving graphs, which need no gradients and get well-formed batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from twml_ops.export.tables import StoredVariable
from twml_ops.ops import stock
from twml_ops.ops._library import library
from twml_ops.ops.stock import check
from twml_ops.ops.stock.sparse_linear import multiply_each, sparse_product


@contextlib.contextmanager
def stock_ops(tables: dict[Any, StoredVariable], variables: list[Any]) -> Iterator[None]:
    """Traces functions with stock ops in the block.

    Args:
        tables: `ref()` of a table's variable → the stored table that is read instead.
        variables: All variables of the model, among which may be bfloat16 tables.
    """
    dtypes = {id(v.handle): v.dtype for v in variables}
    by_handle = {id(ref.deref().handle): stored for ref, stored in tables.items()}

    def resource_sparse_linear(
        ids: tf.Tensor,
        values: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        binary: bool = False,
    ) -> tf.Tensor:
        stored = by_handle.get(id(weights))
        if stored is None:
            # Reading the whole table costs nothing, since it makes no copy.
            table = tf.raw_ops.ReadVariableOp(resource=weights, dtype=dtypes[id(weights)])
            if table.dtype == tf.float32:
                return sparse_product(ids, values, row_splits, table, binary)
            rows = tf.cast(tf.gather(table, ids), tf.float32)
            return sparse_product(tf.range(tf.size(ids)), values, row_splits, rows, binary)
        rows, scale = stored.gather(ids)
        if scale is not None:
            values, binary = (scale if binary else values * scale), False
        return sparse_product(tf.range(tf.size(ids)), values, row_splits, rows, binary)

    replaced = {
        "twml_resource_sparse_linear": resource_sparse_linear,
        "twml_grouped_sparse_linear": partial(multiply_each, resource_sparse_linear),
    }
    ops = SimpleNamespace(**{**vars(stock.library), **replaced})
    with check.assume_valid(), library.override(ops):
        yield
