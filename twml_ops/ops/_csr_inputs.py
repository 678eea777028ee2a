"""A batch's entries as the ops take them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library


def csr_inputs(
    ids: Any, values: Any, row_splits: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, bool]:
    """(ids, values, row_splits, whether the batch is binary): `values` None becomes [0]."""
    binary = values is None
    with library.on_host():
        return (
            tf.convert_to_tensor(ids, dtype_hint=tf.int64),
            tf.zeros([0]) if binary else tf.convert_to_tensor(values, tf.float32),
            tf.convert_to_tensor(row_splits, tf.int64),
            binary,
        )
