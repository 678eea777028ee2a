"""cc/core/discretize.h in stock ops."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.hash import hash_pair
from twml_ops.ops.stock.sparse_linear import searchsorted

# Bucket numbers in the hash that stand for no interval (discretize.cc).
_MISSING_BUCKET = -1
_PASSED_FEATURE = -2

Triple = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


class _Bucketed(NamedTuple):
    """The bucket of each entry.

    Attributes:
        feature: int64 [K], feature ids.
        index: int64 [K], position of the feature among the adapted ones.
        bucket: int64 [K], bucket number within the feature, or -1 for a missing value.
    """

    feature: tf.Tensor
    index: tf.Tensor
    bucket: tf.Tensor


def percentile_discretize(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    feature_ids: tf.Tensor,
    boundaries: tf.Tensor,
    boundary_splits: tf.Tensor,
    *,
    side: str,
    missing: str,
    unknown: str,
    pass_through_bits: int,
    binary: bool,
    keep_inputs: bool = False,
    static: bool = False,
) -> Triple:
    """The op Twml>PercentileDiscretize; for `static` see `xla/static_shapes.py`."""
    check.bits("pass_through_bits", pass_through_bits)
    extra = 2 if missing == "bucket" else 1

    def bucket_id(entry: _Bucketed) -> tf.Tensor:
        # Without features there is only the first split, and no entry uses the end.
        ends = tf.concat([boundary_splits[1:], boundary_splits[-1:]], 0)
        begin, end = tf.gather(boundary_splits, entry.index), tf.gather(ends, entry.index)
        bucket = tf.where(tf.equal(entry.bucket, _MISSING_BUCKET), end - begin + 1, entry.bucket)
        return begin + entry.index * extra + bucket

    features = tf.size(feature_ids, out_type=tf.int64)

    def kept_id(entry: _Bucketed) -> tf.Tensor:
        return boundary_splits[-1] + features * extra + entry.index

    def passed_id(feature: tf.Tensor) -> tf.Tensor:
        end = boundary_splits[-1] + features * (extra + int(keep_inputs))
        return end + hash_pair(feature, _PASSED_FEATURE, pass_through_bits)

    buckets = (feature_ids, boundaries, boundary_splits)
    batch = (ids, values, row_splits)
    input_id = kept_id if keep_inputs else None
    return _discretize(
        batch, buckets, (bucket_id, passed_id, input_id), side, missing, unknown, binary, static
    )


def hashing_discretize(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    feature_ids: tf.Tensor,
    boundaries: tf.Tensor,
    boundary_splits: tf.Tensor,
    *,
    side: str,
    missing: str,
    unknown: str,
    output_bits: int,
    binary: bool,
    keep_inputs: bool = False,
    static: bool = False,
) -> Triple:
    """The op Twml>HashingDiscretize; for `static` see `xla/static_shapes.py`."""
    check.bits("output_bits", output_bits)

    def bucket_id(entry: _Bucketed) -> tf.Tensor:
        return hash_pair(entry.feature, entry.bucket, output_bits)

    def kept_id(entry: _Bucketed) -> tf.Tensor:
        return passed_id(entry.feature)

    def passed_id(feature: tf.Tensor) -> tf.Tensor:
        return hash_pair(feature, _PASSED_FEATURE, output_bits)

    buckets = (feature_ids, boundaries, boundary_splits)
    batch = (ids, values, row_splits)
    input_id = kept_id if keep_inputs else None
    return _discretize(
        batch, buckets, (bucket_id, passed_id, input_id), side, missing, unknown, binary, static
    )


def _discretize(
    batch: Triple,
    buckets: Triple,
    id_functions: tuple[Any, Any, Any],
    side: str,
    missing: str,
    unknown: str,
    binary: bool,
    static: bool,
) -> Triple:
    bucket_id, passed_id, kept_id = id_functions
    check.choice("side", side, ("left", "right"))
    check.choice("missing", missing, ("bucket", "drop"))
    check.choice("unknown", unknown, ("pass", "drop", "error"))
    ids, values, row_splits = batch
    feature_ids, boundaries, splits = buckets
    preconditions = [*check.csr(ids, values, row_splits, binary), *_bucket_preconditions(*buckets)]
    ids, row_splits, splits = check.require_well_formed((ids, row_splits, splits), *preconditions)
    feature = tf.cast(ids, tf.int64)
    values = tf.ones(tf.shape(ids)) if binary else values

    f = searchsorted(feature_ids, feature, "left")
    # One more item, for ids that are larger than all features.
    known = tf.equal(tf.gather(tf.concat([feature_ids, [0]], 0), f), feature)
    known &= f < tf.size(feature_ids, out_type=tf.int64)
    if unknown == "error":
        f = check.require(f, _all_known(known, feature, feature_ids))
    f = tf.where(known, f, 0)
    nan = tf.math.is_nan(values)
    keys = _sort_key(_feature_of_boundary(boundaries, splits), boundaries)
    before = searchsorted(keys, _sort_key(f, values), side)
    bucket = tf.where(nan, tf.constant(_MISSING_BUCKET, tf.int64), before - tf.gather(splits, f))
    bucketed = _Bucketed(feature, f, bucket)
    out_ids = tf.where(known, bucket_id(bucketed), passed_id(feature))
    out_values = tf.stop_gradient(tf.where(known, 1.0, values))

    kept = ids >= 0 if static else None
    if unknown == "drop":
        kept = known if kept is None else kept & known
    if missing == "drop":
        kept = ~nan if kept is None else kept & ~nan
    if kept_id is not None:  # the input follows each bucket as a second entry
        out_ids = _interleave(out_ids, kept_id(bucketed))
        out_values = _interleave(out_values, tf.stop_gradient(values))
        again = known & ~nan if kept is None or not static else kept & known & ~nan
        kept = _interleave(tf.ones_like(known) if kept is None else kept, again)
        row_splits = row_splits * 2
    if kept is None:
        return out_ids, out_values, row_splits
    if static:
        return tf.where(kept, out_ids, -1), tf.where(kept, out_values, 0.0), row_splits
    kept_before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int64))], 0)
    return (
        tf.boolean_mask(out_ids, kept),
        tf.boolean_mask(out_values, kept),
        tf.gather(kept_before, row_splits),
    )


def _interleave(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Alternates the items of both."""
    return tf.reshape(tf.stack([a, b], axis=1), [-1])


def _sort_key(f: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """int64 keys that order (feature index, value) pairs, so that one search serves all features.

    Integer comparison keeps the order of denormal values, which TensorFlow's threads flush to zero.
    """
    bits = tf.bitcast(values, tf.int32)
    bits = tf.where(tf.equal(bits, tf.int32.min), 0, bits)  # -0 is 0
    bits = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.int32.max), bits)
    return f * (1 << 32) + (tf.cast(bits, tf.int64) - tf.int32.min)


def _feature_of_boundary(boundaries: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    return searchsorted(splits[1:], tf.range(tf.size(boundaries, tf.int64)), "right")


def _all_known(known: tf.Tensor, feature: tf.Tensor, feature_ids: tf.Tensor) -> check.Precondition:
    def at() -> tf.Tensor:
        return check.index_of_first(~known)

    return check.Precondition(
        lambda: tf.reduce_all(known),
        "ids[{}] = {} is not one of the {} adapted features",
        (at, lambda: check.item_or_zero(feature, at()), check.size(feature_ids)),
    )


def _bucket_preconditions(
    feature_ids: tf.Tensor, boundaries: tf.Tensor, splits: tf.Tensor
) -> list[check.Precondition]:
    for tensor, name in (
        (feature_ids, "feature_ids"),
        (boundaries, "boundaries"),
        (splits, "boundary_splits"),
    ):
        check.rank(tensor, 1, name)

    def nan() -> tf.Tensor:
        return tf.math.is_nan(boundaries)

    def decreasing() -> tf.Tensor:
        feature = _feature_of_boundary(boundaries, splits)
        keys = _sort_key(tf.zeros([], tf.int64), boundaries)
        return tf.equal(feature[1:], feature[:-1]) & (keys[1:] < keys[:-1])

    return [
        check.equal(
            "boundary_splits must have {} items, one more than feature_ids, got {}",
            lambda: tf.size(feature_ids, tf.int64) + 1,
            check.size(splits),
        ),
        *check.valid_offsets(splits, boundaries, "boundary_splits", "boundaries"),
        check.ordered(
            feature_ids,
            lambda: feature_ids[1:] <= feature_ids[:-1],
            "feature_ids must be strictly increasing",
            "feature_ids",
        ),
        check.Precondition(
            lambda: ~tf.reduce_any(nan()),
            "boundaries[{}] must not be nan",
            (lambda: check.index_of_first(nan()),),
        ),
        check.ordered(
            boundaries, decreasing, "boundaries of one feature must be non-decreasing", "boundaries"
        ),
    ]
