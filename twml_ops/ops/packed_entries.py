"""A batch's entries as few bytes, and back: what travels to parameter servers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._library import library


def pack_entries(
    ids: Any,
    values: Any,
    row_splits: Any,
    input_dim: int,
    parts: int = 1,
    deduplicate: bool = True,
) -> list[tf.Tensor]:
    """One message for each of `parts` servers: the entries with id mod `parts` = p, in order.

    Ids are counted in a part's own rows, id div `parts`, and take as many bits as the largest that
    may come; the entries of a row are counted in as many bits as the most of a row. Where ids
    repeat so often that it is less, each is written once, and for each entry which of them it is.

    Args:
        ids: int32 or int64 [K], each in [0, input_dim).
        values: float32 [K], or None for a binary batch, of which none travel.
        row_splits: int64 [B + 1], CSR offsets.
        input_dim: N, rows of the table.
        parts: number of messages.
        deduplicate: whether to look for ids that repeat; given up where more than half of the first
            8,192 are distinct.

    Returns:
        `parts` uint8 tensors, in the byte order of the machine; see cc/core/packed_entries.h.

    Raises:
        tf.errors.InvalidArgumentError: an id out of range or row_splits that are not offsets; the
            message names the place.
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
    """What `pack_entries` was given, of one part.

    Args:
        packed: uint8, a message.
        dtype: of the ids: int64, or int32 where it holds them.

    Returns:
        `(ids [K], values [K], row_splits [B + 1])`; values [0] of a binary batch.

    Raises:
        tf.errors.InvalidArgumentError: `packed` is no such message, or its ids need int64.
    """
    ids, values, row_splits = library.twml_unpack_entries(
        tf.convert_to_tensor(packed, tf.uint8), T=dtype
    )
    return ids, values, row_splits


tf.no_gradient("Twml>PackEntries")
tf.no_gradient("Twml>UnpackEntries")
