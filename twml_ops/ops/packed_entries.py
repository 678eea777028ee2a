"""The entries of batches on parameter servers: compact messages, and several batches as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._library import library
from twml_ops.ops._shared_groups import declare_packed


def pack_entries(
    ids: Any,
    values: Any,
    row_splits: Any,
    input_dim: int,
    parts: int = 1,
    deduplicate: bool = True,
) -> list[tf.Tensor]:
    """Packs the entries of a batch into one message for each of `parts` servers.

    Message p has the entries with id mod `parts` = p, in their order, with the id div `parts`. An
    id takes as many bits as the largest possible one; the number of entries of a row takes as many
    bits as the largest of them. If ids repeat so often that it saves space, each distinct id is
    written once, in ascending order, with an index into them for each entry. In a graph, gradients
    and updates from the unpacked entries then need not sort them.

    Args:
        ids: int32 or int64 [K], each in [0, input_dim).
        values: float32 [K], or None for a binary batch, whose messages have no values.
        row_splits: int64 [B + 1], CSR offsets.
        input_dim: N, number of rows of the table.
        parts: Number of messages.
        deduplicate: Whether to look for repeated ids. The search ends where more than half of the
            first 8,192 are distinct.

    Returns:
        `parts` uint8 tensors, in the byte order of the machine; see cc/core/packed_entries.h.

    Raises:
        tf.errors.InvalidArgumentError: An id is out of range, or `row_splits` is invalid. The
            message names the position.
    """
    ids, values, row_splits, binary = csr_inputs(ids, values, row_splits)
    return library.twml_pack_entries(
        ids,
        values,
        row_splits,
        parts=parts,
        input_dim=input_dim,
        binary=binary,
        deduplicate=deduplicate,
    )


def unpack_entries(packed: Any, dtype: Any = tf.int64) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Unpacks one message of `pack_entries`.

    Args:
        packed: uint8, a message.
        dtype: Type of the ids: int64, or int32 if they fit.

    Returns:
        `(ids [K], values [K], row_splits [B + 1])`; values are [0] for a binary batch.

    Raises:
        tf.errors.InvalidArgumentError: `packed` is not such a message, or its ids need int64.
    """
    packed = tf.convert_to_tensor(packed, tf.uint8)
    ids, values, row_splits = library.twml_unpack_entries(packed, T=dtype)
    declare_packed(ids, values, row_splits, packed)
    return ids, values, row_splits


def join_batches(
    batches: Sequence[tuple[Any, Any, Any]], gradients: Sequence[Any] = ()
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Makes one batch that has the examples of several batches, in their order.

    Args:
        batches: (ids, values, row_splits) of at least one batch: int32 or int64 [K], float32 [K]
            or, of a binary batch, [0], and int64 [B + 1], each beginning with 0.
        gradients: none, or of each batch the gradient of its mean loss with respect to its
            product, float32 [B, D].

    Returns:
        `(ids, values, row_splits, gradient)` of the joined batch. Its gradient has the rows of all
        gradients, each times the share of its batch in all rows: the gradient of the mean loss of
        all examples. Without gradients it is [0, 0].

    Raises:
        tf.errors.InvalidArgumentError: A tensor has another rank, `row_splits` are empty, or the
            gradients differ in their number or in their columns.
    """
    ids, values, row_splits = zip(*batches, strict=True)
    return library.twml_join_batches(
        ids=ids, values=values, row_splits=row_splits, gradients=list(gradients)
    )


tf.no_gradient("Twml>PackEntries")
tf.no_gradient("Twml>UnpackEntries")
tf.no_gradient("Twml>JoinBatches")
tf.no_gradient("Twml>GroupPackedEntries")
