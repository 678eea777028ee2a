"""How many bytes a step sends, and how tensors are encoded for their way.

The messages of a step are listed in `exchange`. On the link between a worker and one server, a
batch of B examples and K entries makes, for a table [N, D] of which the server has one of R parts
of the rows and one of G ranges of the columns:

- the entries, about K / R of them: a message of `ops.pack_entries`. An id and the number of entries
  of an example take as few bits as the largest of them needs; ids that repeat often are sent once.
  A binary batch has no values; others have 4 bytes for each. See cc/core/packed_entries.h;
- the product, B D / G numbers of 4 bytes, or 2, or 1 and 4 bytes for each of the B rows
  (`WireTypes.products`);
- the gradient of the product, as many numbers (`WireTypes.gradients`);
- a module on the server, such as a tower of fields, makes C numbers of an example of the product:
  then the product and its gradient are the output of the module, B C numbers, and its gradient;
- the gradient of the values, 4 bytes for each of these entries, if a layer in front of the table
  trains.

Several workers also receive the dense weights from the servers that share them, and send the
gradients back, 4 bytes for each weight; synchronous ones through a queue on the first server.
`twml_ops.planning.traffic` predicts these bytes, and `twml-ops plan` prints them.

`encode_rows` is where a product and its gradient are rounded to bfloat16, float16 or int8. The rows
of bfloat16 tables are rounded where the server updates them, in cc/core/simd/update_formulas.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import ops
from twml_ops.planning import BYTES_OF_NUMBER


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


def decode_entries(message: tf.Tensor, num_rows: int) -> ShardEntries:
    """Decodes the entries in a message.

    Args:
        message: A message of `ops.pack_entries`, on the server.
        num_rows: Number of rows of the server's shard, which decides on the type of ids.

    Returns:
        The entries.
    """
    return ShardEntries(*ops.unpack_entries(message, tf.int32 if num_rows < 2**31 else tf.int64))


def num_rows(row_splits: tf.Tensor) -> tf.Tensor:
    """Returns the number of examples, an int32 scalar."""
    return tf.shape(row_splits)[0] - 1


class WireTypes(NamedTuple):
    """The types in which rows are sent.

    Attributes:
        products: The type of products, from servers to workers.
        gradients: The type of their gradients, from workers to servers.
    """

    products: tf.DType
    gradients: tf.DType


WIRE_DTYPES = tuple(BYTES_OF_NUMBER)
"""The names of the types in which rows may be sent."""


class RandomBits(NamedTuple):
    """Which bits `ops.rows_to_int8` rounds with.

    Attributes:
        seed: The run's step before the step, an integer scalar.
        stream: An integer for each worker and each gradient of a step on each server.
    """

    seed: tf.Tensor
    stream: int


def encode_rows(
    rows: tf.Tensor, dtype: tf.DType, random_bits: RandomBits | None = None
) -> list[tf.Tensor]:
    """Encodes rows as the tensors that are sent.

    Args:
        rows: float32 [B, D].
        dtype: One of `WIRE_DTYPES`. Numbers of 16 bits are rounded to the nearest.
        random_bits: With which numbers are rounded to int8; None: to the nearest.

    Returns:
        The rows in `dtype`, and for int8 also their scales.
    """
    if dtype == tf.int8:
        return list(ops.rows_to_int8(rows, *(random_bits or ())))
    return [rows if dtype == tf.float32 else tf.cast(rows, dtype)]


def decode_rows(sent: Iterator[tf.Tensor], columns: int, dtype: tf.DType) -> tf.Tensor:
    """Restores the rows of the next tensors.

    Args:
        sent: Tensors of `encode_rows`, of one call or several, in one dimension each.
        columns: The number of columns.
        dtype: The type in which the rows were sent.

    Returns:
        float32 [B, columns].
    """
    rows = tf.reshape(next(sent), [-1, columns])
    return ops.rows_from_int8(rows, next(sent)) if dtype == tf.int8 else tf.cast(rows, tf.float32)


def pack_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Concatenates dense gradients, so that they are sent as few tensors.

    Args:
        gradients: Tensors with known shapes, or `tf.IndexedSlices`.

    Returns:
        One tensor of one dimension for each type, then the `tf.IndexedSlices` unchanged.
    """
    by_type = _by_type(gradients)
    flat = [tf.concat([tf.reshape(g, [-1]) for g in group], axis=0) for group in by_type.values()]
    return [*flat, *(g for g in gradients if isinstance(g, tf.IndexedSlices))]


def unpack_gradients(packed: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Splits the tensors of `pack_gradients` into the gradients.

    Args:
        packed: The result of `pack_gradients`, or a sum of several results.
        like: The argument of `pack_gradients`, or gradients of the same types and shapes.

    Returns:
        The gradients.
    """
    by_type = _by_type(like)
    split = {}
    for (dtype, group), flat in zip(by_type.items(), packed, strict=False):
        sizes = [g.shape.num_elements() for g in group]
        split[dtype] = iter(tf.split(flat, sizes))
    slices = iter(packed[len(by_type) :])
    return [
        next(slices)
        if isinstance(g, tf.IndexedSlices)
        else tf.reshape(next(split[g.dtype]), g.shape)
        for g in like
    ]


def tensors_of_gradient(gradient: Any) -> list[tf.Tensor]:
    """Returns the tensors of a gradient: itself, or the values and indices of slices."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [gradient]


def gradient_of_tensors(tensors: Iterator[tf.Tensor], like: Any) -> Any:
    """Returns a gradient that consists of the next tensors.

    Args:
        tensors: The results of `tensors_of_gradient`, of one gradient or several, in one dimension
            each.
        like: A gradient of the same type and shape.
    """
    if not isinstance(like, tf.IndexedSlices):
        return tf.reshape(next(tensors), like.shape)
    values = tf.reshape(next(tensors), [-1, *like.values.shape[1:]])
    return tf.IndexedSlices(values, next(tensors), _constant(like.dense_shape))


def _constant(shape: tf.Tensor | None) -> tf.Tensor | None:
    """Returns a known shape as a constant, which every device can have without a message."""
    known = None if shape is None else tf.get_static_value(shape)
    return shape if known is None else tf.constant(known)


def _by_type(gradients: Sequence[Any]) -> dict[tf.DType, list[tf.Tensor]]:
    """Returns the gradients that are tensors, by their type."""
    found: dict[tf.DType, list[tf.Tensor]] = {}
    for gradient in gradients:
        if not isinstance(gradient, tf.IndexedSlices):
            found.setdefault(gradient.dtype, []).append(gradient)
    return found
