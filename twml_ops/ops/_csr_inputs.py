"""Conversion of a batch's entries to the tensors that the ops take."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library


def csr_inputs(
    ids: Any, values: Any, row_splits: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, bool]:
    """Converts a CSR batch to tensors on the device of the ops.

    Args:
        ids: Integer [K].
        values: Float [K], or None for a binary batch.
        row_splits: Integer [B + 1].

    Returns:
        `(ids, values, row_splits, binary)`. `values` is float32 [0] for a binary batch.
    """
    binary = values is None
    with library.on_host():
        return (
            tf.convert_to_tensor(ids, dtype_hint=tf.int64),
            tf.zeros([0]) if binary else tf.convert_to_tensor(values, tf.float32),
            tf.convert_to_tensor(row_splits, tf.int64),
            binary,
        )
