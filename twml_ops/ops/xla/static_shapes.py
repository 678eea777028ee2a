"""The ops on batches of static shape, for XLA and accelerators.

All rows of a batch have the same number of entries. Padding has the id -1, contributes nothing and
keeps its position. Compiled code cannot raise the op library's errors;
`twml_ops.ops.xla_compatible` says what happens instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import check, discretize, hash, normalization
from twml_ops.ops.stock.apply_rows import update_rows
from twml_ops.ops.stock.average_rows import advance_rows
from twml_ops.ops.stock.bfloat16 import cast_to_float32
from twml_ops.ops.stock.lookups import field_rows, gather_dot
from twml_ops.ops.stock.online_standardize import online_standardize as stock_online_standardize
from twml_ops.ops.stock.sparse_linear import multiply_each
from twml_ops.ops.stock.tree_sums import tree_sums

PADDING_ID = -1
_BITS_OF_SIZES = 31


def sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """The op Twml>SparseLinear."""
    return _product(ids, values, row_splits, tf.gather(weights, _clip_padding(ids)), binary)


def resource_sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """The op Twml>ResourceSparseLinear; `weights` is the handle of a variable."""
    dtype = check.variable_dtype(weights, "weights", 2, tf.float32, tf.bfloat16)
    rows = tf.raw_ops.ResourceGather(resource=weights, indices=_replace_padding(ids), dtype=dtype)
    rows = rows if dtype == tf.float32 else cast_to_float32(rows)
    return _product(ids, values, row_splits, rows, binary)


def sum_duplicates(
    ids: tf.Tensor, rows: tf.Tensor, groups: Sequence[tf.Tensor] = ()
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>SumDuplicates; unused positions of the result have id -1 and a zero row."""
    del groups  # there are none
    last = ids.dtype.max
    # A stable ascending sort, with the padding last.
    keys, order = tf.math.top_k(-tf.where(_present(ids), ids, last), k=ids.shape[0])
    keys = -keys
    starts = tf.concat([[True], tf.not_equal(keys[1:], keys[:-1])], axis=0)
    positions = tf.cumsum(tf.cast(starts, tf.int32)) - 1
    unique = tf.math.unsorted_segment_max(keys, positions, ids.shape[0])
    unique = tf.where((unique >= 0) & (unique < last), unique, PADDING_ID)
    sorted_rows = tf.gather(rows, order)
    summed = tf.math.unsorted_segment_sum(sorted_rows, positions, ids.shape[0])
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
    """The op Twml>ApplyRows; rows with the id -1 are ignored."""
    del hogwild  # compiled code has no concurrent steps
    unique, gradient = sum_duplicates(ids, tf.cast(rows, tf.float32))
    count = tf.reduce_sum(tf.cast(_present(unique), tf.int32))
    # Unused positions repeat the last row, which is then written several times with equal values.
    positions = tf.clip_by_value(tf.range(unique.shape[0]), 0, tf.maximum(count - 1, 0))
    handles = [var, *slots]
    shapes = [tf.raw_ops.VariableShape(input=h, out_type=tf.int64) for h in handles]
    touched, gradient = _clip_padding(tf.gather(unique, positions)), tf.gather(gradient, positions)
    return update_rows(rule, handles, shapes, touched, gradient, hyper, seed, count > 0)


def average_rows(
    var: tf.Tensor,
    average: tf.Tensor,
    steps: tf.Tensor,
    ids: tf.Tensor,
    step: Any,
    log_momentum: Any,
    hogwild: bool = False,
) -> Any:
    """The op Twml>AverageRows; in place of padding it advances another row, which changes nothing.

    An average that is advanced earlier or later has the same value, up to rounding.
    """
    del hogwild  # compiled code has no concurrent steps
    return advance_rows(var, average, steps, _replace_padding(ids), step, log_momentum)


def max_norm(
    ids: tf.Tensor,
    values: tf.Tensor,
    max_abs: tf.Tensor,
    bias: Sequence[tf.Tensor],
    training: tf.Tensor,
    groups: Sequence[tf.Tensor] = (),
    *,
    epsilon: float,
    nonfinite: str,
    decay: float = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>MaxNorm; with a `decay` below 1, training reads and writes all N maxima."""
    del groups  # there are none
    del nonfinite  # compiled code cannot raise errors: such values count as 0
    finite = tf.math.is_finite(values) & _present(ids)
    values = tf.where(finite, values, 0.0)

    def update() -> tf.Operation | None:
        before = []
        if decay < 1:
            m = tf.raw_ops.ReadVariableOp(resource=max_abs, dtype=tf.float32)
            present = tf.math.unsorted_segment_max(
                tf.cast(finite, tf.int32), _clip_padding(ids), m.shape[0]
            )
            lower = tf.where(present > 0, m * decay, m)
            before = normalization.as_dependencies(
                tf.raw_ops.AssignVariableOp(resource=max_abs, value=lower)
            )
        with tf.control_dependencies(before):
            return tf.raw_ops.ResourceScatterMax(
                resource=max_abs, indices=_clip_padding(ids), updates=tf.abs(values)
            )

    with tf.control_dependencies(normalization.update_if_training(training, update)):
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
    groups: Sequence[tf.Tensor] = (),
    **attributes: Any,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The op Twml>OnlineStandardize in inference; training needs the op library."""
    del groups  # there are none
    y, scale = stock_online_standardize(
        _clip_padding(ids), values, moments, [], training, **attributes
    )
    for handle in bias:
        y += _gather(handle, ids)
    return tf.where(_present(ids), y, 0.0), scale


def hash_ids(ids: tf.Tensor, bits: int, salt: int = 0) -> tf.Tensor:
    """The op Twml>HashIds."""
    return tf.where(_present(ids), hash.hash_ids(ids, bits, salt), PADDING_ID)


def find_keys(known: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """The op Twml>FindKeys, by a binary search: XLA's own compares each key with all known ones."""
    size = tf.size(known)
    padded = tf.concat([known, tf.zeros([1], tf.int64)], axis=0)  # there is an item to gather
    below = tf.zeros_like(keys, tf.int32)  # how many known keys are certainly less than each
    for bit in reversed(range(_BITS_OF_SIZES)):
        # The size of `known` is not known when the graph is made, so there are steps for any size.
        more = below + tf.minimum(1 << bit, size - below)
        less = (more > below) & (tf.gather(padded, tf.maximum(more - 1, 0)) < keys)
        below = tf.where(less, more, below)
    there = (below < size) & tf.equal(tf.gather(padded, below), keys)
    return tf.where(there, tf.cast(below, tf.int64), tf.constant(-1, tf.int64))


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
    """Replaces padding by the largest id of the batch, or by 0 if the batch is all padding.

    The gradient of padding is 0; this way it names no row that the batch does not name.
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
    twml_average_rows=average_rows,
    twml_max_norm=max_norm,
    twml_online_standardize=online_standardize,
    twml_hash_ids=hash_ids,
    twml_field_rows=field_rows,
    twml_find_keys=find_keys,
    twml_gather_dot=gather_dot,
    twml_tree_sums=tree_sums,
    twml_percentile_discretize=partial(discretize.percentile_discretize, static=True),
    twml_hashing_discretize=partial(discretize.hashing_discretize, static=True),
)
"""Replacement of the op library's module."""
