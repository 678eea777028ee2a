"""What travels between a worker and a server, small.

To a server: the batch's ids that it multiplies, int32 where the shard's rows allow; the number of
entries of each example instead of row ids or 64-bit offsets; values unless the batch is binary.
They are sent once and serve forward and backward. Back and forth: products [B, D] and their
gradients, if asked as 16-bit floats.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from twml_ops.distribute.partition import Entries, part_of

SAMPLE = 8192  # ids looked at to guess whether repeated ones are worth finding


class Part(NamedTuple):
    """The entries of a batch that one server multiplies, there.

    Attributes:
        ids: int32 or int64 [K], rows of the shard.
        values: float32 [K], or [0] of a binary batch.
        lengths: int32 [B], entries of each example.
    """

    ids: tf.Tensor
    values: tf.Tensor
    lengths: tf.Tensor

    @property
    def row_splits(self) -> tf.Tensor:
        """int64 [B + 1], computed where the part is."""
        lengths = tf.cast(self.lengths, tf.int64)
        return tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], axis=0)


def send(
    entries: Entries, index: int, count: int, by_row: bool, rows: int, device: str, dedup: bool
) -> Part:
    """The part of `entries` of server `index` of `count`, on its `device`.

    Args:
        entries: of the batch, on the worker.
        index: of the server.
        count: of servers.
        by_row: whether it needs only the ids with id mod count = index, or all.
        rows: of its shard.
        device: of the server.
        dedup: whether to send each id once where that is less.
    """
    ids, values, splits = part_of(entries, index, count) if by_row and count > 1 else entries
    if rows < 2**31 and ids.dtype != tf.int32:
        # One that int32 cannot hold must stay an error, and not become another id.
        ids = tf.cast(tf.clip_by_value(ids, -1, rows), tf.int32)
    lengths = tf.cast(splits[1:] - splits[:-1], tf.int32)
    values = tf.zeros([0]) if values is None else values
    if dedup and ids.dtype == tf.int32:
        distinct, codes, plain = _distinct(ids)
        with tf.device(device):
            arrived = tf.identity(plain), tf.identity(distinct), tf.identity(codes)
            ids = tf.cond(
                tf.size(arrived[1]) > 0,
                lambda: tf.gather(arrived[1], tf.cast(arrived[2], tf.int32)),
                lambda: arrived[0],
            )
    with tf.device(device):
        return Part(tf.identity(ids), tf.identity(values), tf.identity(lengths))


def narrow(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """`tensor` float32, as it travels."""
    return tensor if dtype == tf.float32 else tf.cast(tensor, dtype)


def _distinct(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(distinct ids, uint16 [K] which of them, nothing) or (nothing, nothing, ids), the less."""
    nothing = tf.zeros([0], tf.int32), tf.zeros([0], tf.uint16)

    def found() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        distinct, codes = tf.unique(ids)
        count, size = tf.size(distinct), tf.size(ids)
        less = (count <= 2**16) & (4 * count + 2 * size < 4 * size)
        return tf.cond(
            less,
            lambda: (distinct, tf.cast(codes, tf.uint16), nothing[0]),
            lambda: (*nothing, ids),
        )

    sample = tf.unique(ids[:SAMPLE]).y
    some_repeat = 4 * tf.size(sample) < 3 * tf.minimum(tf.size(ids), SAMPLE)
    return tf.cond(some_repeat, found, lambda: (*nothing, ids))
