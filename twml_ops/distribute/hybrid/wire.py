"""The messages between a worker and the servers, in a compact form.

To a server, a worker sends the entries of the batches that the server multiplies, packed by
`ops.pack_entries`. Ids and the number of entries of each example take as few bits as they need; a
binary batch has no values. The server uses the message for the forward and the backward pass.
Products [B, D] and their gradients are sent as float32, or as 16-bit floats. What belongs to
several tables is sent in one message; see `exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from twml_ops import ops


class ShardEntries(NamedTuple):
    """The entries of a batch that one server multiplies, as tensors on that server.

    Attributes:
        ids: int32 or int64 [K], which count the rows of the shard.
        values: float32 [K], or [0] for a binary batch.
        row_splits: int64 [B + 1].
    """

    ids: tf.Tensor
    values: tf.Tensor
    row_splits: tf.Tensor


def receive_entries(message: tf.Tensor, num_rows: int) -> ShardEntries:
    """Unpacks a message.

    Args:
        message: A message of `ops.pack_entries`, on the server.
        num_rows: Number of rows of the server's shard, which decides on the type of ids.

    Returns:
        The entries in the message.
    """
    return ShardEntries(*ops.unpack_entries(message, tf.int32 if num_rows < 2**31 else tf.int64))


def concat_entries(batches: Sequence[ShardEntries]) -> ShardEntries:
    """Concatenates batches.

    Args:
        batches: The entries of at least one batch.

    Returns:
        The entries of one batch that has the examples of all.
    """
    if len(batches) == 1:
        return batches[0]
    ids, values, splits = zip(*batches, strict=True)
    return ShardEntries(tf.concat(ids, 0), tf.concat(values, 0), concat_row_splits(splits))


def concat_row_splits(splits: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates the row splits of batches.

    Args:
        splits: int64 [B + 1] of each batch, at least one.

    Returns:
        The row splits of one batch that has the examples of all.
    """
    row_splits, before = [splits[0]], splits[0][-1]
    for s in splits[1:]:
        row_splits.append(s[1:] + before)
        before += s[-1]
    return tf.concat(row_splits, 0)


def num_rows(row_splits: tf.Tensor) -> tf.Tensor:
    """Returns the number of examples, an int32 scalar."""
    return tf.shape(row_splits)[0] - 1


def cast_for_wire(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts a float32 tensor to the type in which it is sent.

    Args:
        tensor: A float32 tensor.
        dtype: float32, bfloat16 or float16.

    Returns:
        The tensor in `dtype`.
    """
    return tensor if dtype == tf.float32 else tf.cast(tensor, dtype)
