"""Conversion between the batch forms of the layers and the CSR form of the ops.

1. A `tf.SparseTensor` [B, N] whose columns are ids, in row-major order as Keras and tf.data make
   it.
2. A pair of `tf.RaggedTensor` (ids, values), or one ragged ids: a binary batch, whose values are
   all 1.
3. A padded dense pair (ids [B, M], values [B, M]), or one dense integer ids. The id -1 is padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import ops
from twml_ops._keras import as_declared
from twml_ops.ops._library import library


class SparseBatch(NamedTuple):
    """A CSR batch: row b has the entries row_splits[b] to row_splits[b + 1] - 1.

    Attributes:
        ids: Integer [K].
        values: Float [K], or None for a binary batch.
        row_splits: int64 [B + 1].
    """

    ids: tf.Tensor
    values: tf.Tensor | None
    row_splits: tf.Tensor

    def values_or_ones(self) -> tf.Tensor:
        """The values, float32 [K]; ones for a binary batch."""
        return tf.ones(tf.shape(self.ids)) if self.values is None else self.values


Rebuild = Callable[[SparseBatch, int], Any]

# Attribute of the indices that a layer returns: their ids and row_splits, for the next layer.
_SOURCE_CSR = "_twml_ops_made_of"


def parse(inputs: Any, hashes: bool = False) -> tuple[SparseBatch, Rebuild]:
    """Converts a batch of any form to CSR.

    Args:
        inputs: A batch in one of the three forms above.
        hashes: Whether ids are any 64 bits; see `as_ids`.

    Returns:
        `(batch, rebuild)`. `rebuild(other, num_columns)` converts a CSR batch with as many rows to
        the form of `inputs`. A SparseTensor gets the shape [B, num_columns]. Padded entries keep
        their positions if `other.row_splits` is that of `batch`, and move to the start of their
        rows otherwise.

    Raises:
        ValueError: `inputs` has none of the forms.
        tf.errors.InvalidArgumentError: see `as_ids`.
    """
    if isinstance(inputs, tf.SparseTensor):
        return _parse_sparse(inputs)
    ids, values = (
        inputs if isinstance(inputs, (tuple, list)) and len(inputs) == 2 else (inputs, None)
    )
    ids = as_declared(ids, tf.int64)
    if isinstance(ids, tf.RaggedTensor):
        if values is None or isinstance(values, tf.RaggedTensor):
            return _parse_ragged(ids, values, hashes)
    elif _is_matrix(ids) and ids.dtype.is_integer and (values is None or _is_matrix(values)):
        return _parse_padded(ids, values, hashes)
    raise ValueError(
        "inputs must be a tf.SparseTensor [B, N], a pair of tf.RaggedTensor (ids, values) or one "
        "ragged integer ids, or a padded dense pair (ids [B, M], values [B, M]) with id -1 as "
        f"padding; got {_describe(inputs)}"
    )


def with_weightless_padding(batch: SparseBatch) -> SparseBatch:
    """A batch whose padding, which is among the entries of static shapes, has the value 0."""
    if not library.uses_static_shapes:
        return batch
    return batch._replace(values=tf.where(batch.ids == -1, 0.0, batch.values_or_ones()))


def num_rows(batch: SparseBatch) -> tf.Tensor:
    """The number of rows B, int64 scalar."""
    return tf.shape(batch.row_splits, out_type=tf.int64)[0] - 1


def _is_matrix(x: Any) -> bool:
    return tf.is_tensor(x) and not isinstance(x, tf.RaggedTensor) and x.shape.rank == 2


def _describe(inputs: Any) -> str:
    if isinstance(inputs, (tuple, list)):
        return f"({', '.join(_describe(i) for i in inputs)})"
    shape = getattr(inputs, "shape", "")
    dtype = getattr(getattr(inputs, "dtype", None), "name", getattr(inputs, "dtype", ""))
    return f"{type(inputs).__name__} {dtype} {shape}".strip()


def _parse_sparse(inputs: tf.SparseTensor) -> tuple[SparseBatch, Rebuild]:
    if inputs.shape.rank not in (None, 2):
        raise ValueError(f"a sparse batch must have the shape [B, N], got {inputs.shape}")
    num = inputs.dense_shape[0]
    source = getattr(inputs.indices, _SOURCE_CSR, None)
    ids, splits = source or ops.csr_from_indices(inputs.indices, num)
    batch = SparseBatch(ids, _as_float(inputs.values), splits)

    def rebuild(other: SparseBatch, num_columns: int) -> tf.SparseTensor:
        shape = tf.stack([num, tf.constant(num_columns, tf.int64)])
        sparse = tf.SparseTensor(indices_of(other), other.values_or_ones(), shape)
        sparse.set_shape(tf.TensorShape([inputs.shape[0], num_columns]))
        return sparse

    def indices_of(other: SparseBatch) -> tf.Tensor:
        if other.ids is ids and other.row_splits is splits:
            return inputs.indices
        rows = inputs.indices[:, 0]
        if other.row_splits is not splits:
            rows = tf.RaggedTensor.from_row_splits(
                other.ids, other.row_splits, validate=False
            ).value_rowids()
        indices = tf.stack([rows, tf.cast(other.ids, tf.int64)], axis=1)
        setattr(indices, _SOURCE_CSR, (other.ids, other.row_splits))
        return indices

    return batch, rebuild


def _parse_ragged(
    ids: tf.RaggedTensor, values: tf.RaggedTensor | None, hashes: bool
) -> tuple[SparseBatch, Rebuild]:
    if ids.ragged_rank != 1 or not ids.dtype.is_integer or ids.flat_values.shape.rank != 1:
        raise ValueError(f"ragged ids must be integer [B, None], got {_describe(ids)}")
    splits = tf.cast(ids.row_splits, tf.int64)
    flat = None
    if values is not None:
        if values.ragged_rank != 1 or values.flat_values.shape.rank != 1:
            raise ValueError(f"ragged values must be [B, None], got {_describe(values)}")
        flat = _as_float(values.flat_values)
        if values.row_splits is not ids.row_splits:
            values_splits = tf.cast(values.row_splits, tf.int64)
            flat = _require_equal(splits, values_splits, "row lengths", flat)
    batch = SparseBatch(as_ids(ids.flat_values, hashes), flat, splits)

    def rebuild(other: SparseBatch, num_columns: int) -> Any:
        del num_columns  # ragged rows have no width

        def ragged(flat: tf.Tensor) -> tf.RaggedTensor:
            if other.row_splits is splits:
                return ids.with_flat_values(flat)
            return tf.RaggedTensor.from_row_splits(flat, other.row_splits, validate=False)

        if values is None and other.values is None:
            return ragged(other.ids)
        return ragged(other.ids), ragged(other.values_or_ones())

    return batch, rebuild


def _parse_padded(
    ids: tf.Tensor, values: tf.Tensor | None, hashes: bool
) -> tuple[SparseBatch, Rebuild]:
    if values is not None and not (ids.shape.is_fully_defined() and ids.shape == values.shape):
        values = _require_equal(tf.shape(ids), tf.shape(values), "shape", values)
    ids = as_ids(ids, hashes)
    if library.uses_static_shapes:
        return _parse_static(ids, values)
    present = tf.not_equal(ids, -1)  # `!=` compares Python objects in a version 1 graph
    positions = tf.where(present)
    flat = None if values is None else _as_float(tf.gather_nd(values, positions))
    lengths = tf.reduce_sum(tf.cast(present, tf.int64), axis=1)
    splits = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], axis=0)
    batch = SparseBatch(tf.gather_nd(ids, positions), flat, splits)
    shape = tf.shape(ids, out_type=tf.int64)

    def rebuild(other: SparseBatch, num_columns: int) -> Any:
        del num_columns  # padded rows keep their width, or grow to that of the longest row

        def padded(flat: tf.Tensor, default: Any) -> tf.Tensor:
            if other.row_splits is splits:
                fill = tf.fill(shape, tf.cast(default, flat.dtype))
                out = tf.tensor_scatter_nd_update(fill, positions, flat)
                return tf.ensure_shape(out, ids.shape)
            rows = tf.RaggedTensor.from_row_splits(flat, other.row_splits, validate=False)
            width = tf.maximum(shape[1], rows.bounding_shape(axis=1, out_type=tf.int64))
            out = rows.to_tensor(default, shape=tf.stack([shape[0], width]))
            return tf.ensure_shape(out, [ids.shape[0], None])

        if values is None and other.values is None:
            return padded(other.ids, -1)
        return padded(other.ids, -1), padded(other.values_or_ones(), 0.0)

    return batch, rebuild


def _parse_static(ids: tf.Tensor, values: tf.Tensor | None) -> tuple[SparseBatch, Rebuild]:
    """A padded batch of static shape: all positions are entries, padding with id -1 and value 0."""
    if not ids.shape.is_fully_defined():
        raise ValueError(
            f"a batch in xla_compatible() must have a known shape, got {_describe(ids)}"
        )
    rows, width = ids.shape
    flat_ids = tf.reshape(ids, [-1])
    flat = None
    if values is not None:
        flat = tf.where(flat_ids != -1, tf.reshape(_as_float(values), [-1]), 0.0)
    splits = tf.constant([width * row for row in range(rows + 1)], tf.int64)

    def rebuild(other: SparseBatch, num_columns: int) -> Any:
        del num_columns  # as for any padded batch
        new_ids = tf.reshape(other.ids, [rows, -1])
        if values is None and other.values is None:
            return new_ids
        new_values = tf.reshape(other.values_or_ones(), [rows, -1])
        return new_ids, tf.where(new_ids >= 0, new_values, 0.0)

    return SparseBatch(flat_ids, flat, splits), rebuild


def _require_equal(ids_size: Any, values_size: Any, what: str, values: tf.Tensor) -> tf.Tensor:
    """`values`, after a check that both numbers are equal, also in version 1 graphs."""
    message = f"ids and values must have the same {what}"
    if tf.executing_eagerly():
        tf.debugging.assert_equal(ids_size, values_size, message, summarize=8)
        return values
    # In a graph `tf.debugging` would trace two functions of a `cond` for each check.
    data = [tf.constant(f"{message}, got"), ids_size, tf.constant("and"), values_size]
    check = tf.raw_ops.Assert(
        condition=tf.reduce_all(tf.equal(ids_size, values_size)), data=data, summarize=8
    )
    with tf.control_dependencies([check]):
        return tf.identity(values)


def as_ids(ids: tf.Tensor, hashes: bool = False) -> tf.Tensor:
    """Integer ids as int32 or int64.

    Args:
        ids: Of any integer type.
        hashes: Whether ids are any 64 bits: an id of uint64 becomes the int64 of the same bits.

    Raises:
        tf.errors.InvalidArgumentError: An id of uint64 is 2^63 or more, and not `hashes`. Its int64
            would be negative, and stand for a missing value, padding or another row. Compiled code
            raises no errors.
    """
    if ids.dtype == tf.uint64 and not (hashes or library.uses_static_shapes):
        message = "ids of uint64 must be below 2^63 (for hashes, take them modulo 2^63), got"
        below = tf.reduce_all(ids < tf.constant(1 << 63, tf.uint64))
        data = [tf.constant(message), tf.reduce_max(ids)]
        with tf.control_dependencies([tf.raw_ops.Assert(condition=below, data=data)]):
            ids = tf.identity(ids)
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)


def _as_float(values: tf.Tensor) -> tf.Tensor:
    return values if values.dtype == tf.float32 else tf.cast(values, tf.float32)
