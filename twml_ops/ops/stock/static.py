"""The ops on batches of static shape, as XLA and accelerators want them.

Every row of a batch has the same number of entries, and those that are none have the id -1: they
count for nothing and stay where they are. What the op library would refuse cannot be refused in
compiled code: see `twml_ops.ops.compilable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import discretize, hash, norm
from twml_ops.ops.stock.online_standardize import online_standardize as inferred
from twml_ops.ops.stock.sparse_linear import grouped_by

NONE = -1


def sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """As the op Twml>SparseLinear."""
    return _product(ids, values, row_splits, tf.gather(weights, _safe(ids)), binary)


def resource_sparse_linear(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    binary: bool = False,
) -> tf.Tensor:
    """As the op Twml>ResourceSparseLinear: `weights` is the handle of a variable."""
    return _product(ids, values, row_splits, _gather(weights, ids), binary)


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
            shown = tf.math.unsorted_segment_max(tf.cast(finite, tf.int32), _safe(ids), m.shape[0])
            less = tf.where(shown > 0, m * decay, m)
            before = norm.done(tf.raw_ops.AssignVariableOp(resource=max_abs, value=less))
        with tf.control_dependencies(before):
            return tf.raw_ops.ResourceScatterMax(
                resource=max_abs, indices=_safe(ids), updates=tf.abs(values)
            )

    with tf.control_dependencies(norm.in_training(training, raised)):
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
    y, scale = inferred(_safe(ids), values, moments, [], training, **attributes)
    for handle in bias:
        y += _gather(handle, ids)
    return tf.where(_present(ids), y, 0.0), scale


def hash_ids(ids: tf.Tensor, bits: int, salt: int = 0) -> tf.Tensor:
    """As the op Twml>HashIds."""
    return tf.where(_present(ids), hash.hash_ids(ids, bits, salt), NONE)


def _product(
    ids: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor, rows: tf.Tensor, binary: bool
) -> tf.Tensor:
    weight = tf.cast(_present(ids), rows.dtype)
    weight = weight if binary else weight * values
    shape = [row_splits.shape[0] - 1, -1, rows.shape[1]]
    return tf.reduce_sum(tf.reshape(rows * weight[:, tf.newaxis], shape), axis=1)


def _present(ids: tf.Tensor) -> tf.Tensor:
    return ids >= 0


def _safe(ids: tf.Tensor) -> tf.Tensor:
    return tf.maximum(ids, 0)


def _gather(handle: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=handle, indices=_safe(ids), dtype=tf.float32)


library = SimpleNamespace(
    twml_sparse_linear=sparse_linear,
    twml_resource_sparse_linear=resource_sparse_linear,
    twml_grouped_sparse_linear=partial(grouped_by, resource_sparse_linear),
    twml_max_norm=max_norm,
    twml_online_standardize=online_standardize,
    twml_hash_ids=hash_ids,
    twml_percentile_discretize=partial(discretize.percentile_discretize, static=True),
    twml_hashing_discretize=partial(discretize.hashing_discretize, static=True),
)
"""What stands for the op library's module."""
