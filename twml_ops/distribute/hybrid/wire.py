"""What travels between a worker and a server, small.

To a server: one message a product, the batch's entries that it multiplies, packed by
`ops.pack_entries`: ids and the number of entries of each example in as few bits as they need;
values unless the batch is binary. It is sent once and serves forward and backward. Back and forth:
products [B, D] and their gradients, if asked as 16-bit floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from twml_ops import ops
from twml_ops.placement.entries import CsrEntries


class ShardEntries(NamedTuple):
    """The entries of a batch that one server multiplies, there.

    Attributes:
        ids: int32 or int64 [K], rows of the shard.
        values: float32 [K], or [0] of a binary batch.
        row_splits: int64 [B + 1].
    """

    ids: tf.Tensor
    values: tf.Tensor
    row_splits: tf.Tensor


def send_entries(
    entries: CsrEntries, by_row: bool, input_dim: int, devices: Sequence[str], dedup: bool
) -> list[tf.Tensor]:
    """The message of each server, there.

    Args:
        entries: of the batch, on the worker.
        by_row: whether server p needs only the ids with id mod their number = p, or all.
        input_dim: rows of the whole table.
        devices: of the servers.
        dedup: whether to send each id once where that is less.
    """
    messages = ops.pack_entries(
        *entries, input_dim, parts=len(devices) if by_row else 1, deduplicate=dedup
    )
    arrived = []
    for p, device in enumerate(devices):
        with tf.device(device):
            arrived.append(tf.identity(messages[p if by_row else 0]))
    return arrived


def receive_entries(message: tf.Tensor, rows: int) -> ShardEntries:
    """The entries in a message, for a shard of so many rows."""
    return ShardEntries(*ops.unpack_entries(message, tf.int32 if rows < 2**31 else tf.int64))


def concat_entries(parts: Sequence[ShardEntries]) -> ShardEntries:
    """The entries of one batch after the other."""
    if len(parts) == 1:
        return parts[0]
    ids, values, splits = zip(*parts, strict=True)
    row_splits, before = [splits[0]], splits[0][-1]
    for s in splits[1:]:
        row_splits.append(s[1:] + before)
        before += s[-1]
    return ShardEntries(tf.concat(ids, 0), tf.concat(values, 0), tf.concat(row_splits, 0))


def cast_for_wire(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """`tensor` float32, as it travels."""
    return tensor if dtype == tf.float32 else tf.cast(tensor, dtype)
