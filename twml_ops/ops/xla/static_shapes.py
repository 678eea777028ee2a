"""The ops on batches of static shape, as XLA and accelerators want them.

Every row of a batch has the same number of entries, and those that are none have the id -1: they
count for nothing and stay where they are. What the op library would refuse cannot be refused in
compiled code: see `twml_ops.ops.xla_compatible`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import check, discretize, hash, norm
from twml_ops.ops.stock.apply_rows import update_rows
from twml_ops.ops.stock.bfloat16 import cast_to_float32
from twml_ops.ops.stock.online_standardize import online_standardize as stock_online_standardize
from twml_ops.ops.stock.sparse_linear import multiply_each

PADDING_ID = -1


def sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """As the op Twml>SparseLinear."""
    return _product(ids, values, row_splits, tf.gather(weights, _clip_padding(ids)), binary)


def resource_sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """As the op Twml>ResourceSparseLinear: `weights` is the handle of a variable."""
    dtype = check.variable_dtype(weights, "weights", 2, tf.float32, tf.bfloat16)
    rows = tf.raw_ops.ResourceGather(resource=weights, indices=_replace_padding(ids), dtype=dtype)
    rows = rows if dtype == tf.float32 else cast_to_float32(rows)
    return _product(ids, values, row_splits, rows, binary)


def sum_duplicates(ids: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """As the op Twml>SumDuplicates; places [K] that are left over have the id -1 and a row of 0."""
    last = ids.dtype.max
    keys, order = tf.math.top_k(-tf.where(_present(ids), ids, last), k=ids.shape[0])  # is stable
    keys = -keys
    starts = tf.concat([[True], tf.not_equal(keys[1:], keys[:-1])], axis=0)
    places = tf.cumsum(tf.cast(starts, tf.int32)) - 1
    unique = tf.math.unsorted_segment_max(keys, places, ids.shape[0])
    unique = tf.where((unique >= 0) & (unique < last), unique, PADDING_ID)
    sorted_rows = tf.gather(rows, order)
    summed = tf.math.unsorted_segment_sum(sorted_rows, places, ids.shape[0])
    column = [-1] + [1] * (len(rows.shape) - 1)
    return unique, tf.where(tf.reshape(_present(unique), column), summed, 0.0)


def apply_rows(
    var: tf.Tensor,
    slots: Sequence[tf.Tensor],
    ids: tf.Tensor,
    rows: tf.Tensor,
    hyper: Sequence[tf.Tensor],
    seed: Any = 0,
    rule: str = "",
    hogwild: bool = False,
) -> Any:
    """As the op Twml>ApplyRows; rows with the id -1 are none."""
    del hogwild  # compiled code has no threads of ours
    unique, gradient = sum_duplicates(ids, tf.cast(rows, tf.float32))
    count = tf.reduce_sum(tf.cast(_present(unique), tf.int32))
    # Places left over repeat the last row: it is then written more than once, the same each time.
    places = tf.clip_by_value(tf.range(unique.shape[0]), 0, tf.maximum(count - 1, 0))
    handles = [var, *slots]
    shapes = [tf.raw_ops.VariableShape(input=h, out_type=tf.int64) for h in handles]
    touched, gradient = _clip_padding(tf.gather(unique, places)), tf.gather(gradient, places)
    return update_rows(rule, handles, shapes, touched, gradient, hyper, seed, count > 0)


def max_norm(
    ids: tf.Tensor,
    values: tf.Tensor,
    max_abs: tf.Tensor,
    bias: Sequence[tf.Tensor],
    training: tf.Tensor,
    epsilon: float,
    nonfinite: str,
    decay: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """As the op Twml>MaxNorm; a `decay` below 1 reads and writes all N maxima in training."""
    del nonfinite  # compiled code has no errors: such values count as 0
    finite = tf.math.is_finite(values) & _present(ids)
    values = tf.where(finite, values, 0.0)

    def raised() -> tf.Operation | None:
        before = []
        if decay < 1:
            m = tf.raw_ops.ReadVariableOp(resource=max_abs, dtype=tf.float32)
            shown = tf.math.unsorted_segment_max(
                tf.cast(finite, tf.int32), _clip_padding(ids), m.shape[0]
            )
            less = tf.where(shown > 0, m * decay, m)
            before = norm.as_dependencies(tf.raw_ops.AssignVariableOp(resource=max_abs, value=less))
        with tf.control_dependencies(before):
            return tf.raw_ops.ResourceScatterMax(
                resource=max_abs, indices=_clip_padding(ids), updates=tf.abs(values)
            )

    with tf.control_dependencies(norm.update_if_training(training, raised)):
        m = tf.stop_gradient(tf.maximum(_gather(max_abs, ids), epsilon))
    inside = tf.abs(values) <= m
    y = tf.where(inside, values / m, tf.sign(values))
    scale = tf.where(finite & inside, 1.0 / m, 0.0)
    for handle in bias:
        y += _gather(handle, ids)
    return tf.where(_present(ids), y, 0.0), scale


def online_standardize(
    ids: tf.Tensor,
    values: tf.Tensor,
    moments: tf.Tensor,
    bias: Sequence[tf.Tensor],
    training: tf.Tensor,
    **attributes: Any,
) -> tuple[tf.Tensor, tf.Tensor]:
    """As the op Twml>OnlineStandardize in inference; training needs the op library."""
    y, scale = stock_online_standardize(
        _clip_padding(ids), values, moments, [], training, **attributes
    )
    for handle in bias:
        y += _gather(handle, ids)
    return tf.where(_present(ids), y, 0.0), scale


def hash_ids(ids: tf.Tensor, bits: int, salt: int = 0) -> tf.Tensor:
    """As the op Twml>HashIds."""
    return tf.where(_present(ids), hash.hash_ids(ids, bits, salt), PADDING_ID)


def _product(
    ids: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor, rows: tf.Tensor, binary: bool
) -> tf.Tensor:
    weight = tf.cast(_present(ids), rows.dtype)
    weight = weight if binary else weight * values
    shape = [row_splits.shape[0] - 1, -1, rows.shape[1]]
    return tf.reduce_sum(tf.reshape(rows * weight[:, tf.newaxis], shape), axis=1)


def _present(ids: tf.Tensor) -> tf.Tensor:
    return ids >= 0


def _clip_padding(ids: tf.Tensor) -> tf.Tensor:
    return tf.maximum(ids, 0)


def _replace_padding(ids: tf.Tensor) -> tf.Tensor:
    """Ids of the batch: a gradient, 0, of what padding reads then names no row that has none.

    Of a batch of nothing but padding it names row 0.
    """
    return tf.where(_present(ids), ids, tf.maximum(tf.reduce_max(ids), 0))


def _gather(handle: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    indices = _replace_padding(ids)
    return tf.raw_ops.ResourceGather(resource=handle, indices=indices, dtype=tf.float32)


library = SimpleNamespace(
    twml_sparse_linear=sparse_linear,
    twml_resource_sparse_linear=resource_sparse_linear,
    twml_grouped_sparse_linear=partial(multiply_each, resource_sparse_linear),
    twml_sum_duplicates=sum_duplicates,
    twml_apply_rows=apply_rows,
    twml_max_norm=max_norm,
    twml_online_standardize=online_standardize,
    twml_hash_ids=hash_ids,
    twml_percentile_discretize=partial(discretize.percentile_discretize, static=True),
    twml_hashing_discretize=partial(discretize.hashing_discretize, static=True),
)
"""What stands for the op library's module."""
