"""`percentile_discretize` and `hashing_discretize`: continuous features to buckets."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._library import library

Side = Literal["left", "right"]
Missing = Literal["bucket", "drop"]
Unknown = Literal["pass", "drop", "error"]


def percentile_discretize(
    ids: Any,
    values: Any,
    row_splits: Any,
    feature_ids: Any,
    boundaries: Any,
    boundary_splits: Any,
    *,
    side: Side = "left",
    missing: Missing = "bucket",
    unknown: Unknown = "pass",
    pass_through_bits: int = 18,
    keep_inputs: bool = False,
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    """Replaces each (feature, value) by (id of its bucket, 1).

    The bucket is `numpy.searchsorted(boundaries of the feature, value, side)`; infinities are
    values like any other. Feature f, with n boundaries, owns n + 1 consecutive ids from
    `boundary_splits[f] + f * (2 if missing == "bucket" else 1)` on, and behind them, if missing is
    "bucket", one more for NaN. After the last feature comes the pass-through space of
    2^pass_through_bits ids.

    Costs O(K log n) a batch; the first batch after a change of the boundaries also checks and
    indexes them. No gradient flows back to `values`.

    Args:
        ids: int32 or int64 [K], feature ids: any integers.
        values: float32 [K], or None for a binary batch (all 1).
        row_splits: int64 [B + 1], CSR offsets.
        feature_ids: int64 [F], the adapted features, strictly ascending.
        boundaries: float32 [boundary_splits[F]], of each feature not falling, without NaN.
        boundary_splits: int64 [F + 1], the boundaries of feature f start at item f.
        side: "left": `#{boundaries < value}`, intervals (a, b]. "right": `#{boundaries <= value}`,
            intervals [a, b).
        missing: "bucket": a NaN gets the bucket of its own. "drop": the entry is dropped.
        unknown: of entries whose feature is not in `feature_ids`. "pass": keeps its value (a NaN
            too, unless missing is "drop") at an id hashed from the feature into the pass-through
            space. "drop": is dropped. "error": the batch is refused.
        pass_through_bits: 1 to 62.
        keep_inputs: an entry of an adapted feature whose value is not NaN also stays, as it is,
            behind its bucket: at id (number of all buckets) + f. The pass-through space then comes
            after these F ids. An entry that is passed appears once, as without.

    Returns:
        `(ids int64 [L], values float32 [L] or None where `values` was None, row_splits int64
        [B + 1])`, entries in their order; L < K only if entries were dropped, and
        L > K only if inputs are kept.

    Raises:
        tf.errors.InvalidArgumentError: an unknown feature where that is an error, or boundaries
            or offsets that are not as described.
    """
    return _discretize(
        library.twml_percentile_discretize,
        (ids, values, row_splits),
        (feature_ids, boundaries, boundary_splits),
        side=side,
        missing=missing,
        unknown=unknown,
        pass_through_bits=pass_through_bits,
        keep_inputs=keep_inputs,
    )


def hashing_discretize(
    ids: Any,
    values: Any,
    row_splits: Any,
    feature_ids: Any,
    boundaries: Any,
    boundary_splits: Any,
    *,
    output_bits: int,
    side: Side = "left",
    missing: Missing = "bucket",
    unknown: Unknown = "pass",
    keep_inputs: bool = False,
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    """`percentile_discretize` into ids hashed from (feature, bucket), in [0, 2^output_bits).

    The id of a bucket depends on its feature and its number alone, so it stays when other features
    are added; the NaN bucket of a feature keeps its id however many boundaries the feature has. A
    passed entry's id is hashed from its feature. Buckets may collide. The hash is that of
    `hash_ids`, salted with the feature id. No gradient flows back to `values`.

    Args:
        ids: int32 or int64 [K], feature ids: any integers.
        values: float32 [K], or None for a binary batch (all 1).
        row_splits: int64 [B + 1], CSR offsets.
        feature_ids: int64 [F], the adapted features, strictly ascending.
        boundaries: float32 [boundary_splits[F]], of each feature not falling, without NaN.
        boundary_splits: int64 [F + 1], the boundaries of feature f start at item f.
        output_bits: 1 to 62.
        side: as in `percentile_discretize`.
        missing: as in `percentile_discretize`.
        unknown: as in `percentile_discretize`.
        keep_inputs: an entry of an adapted feature whose value is not NaN also stays, as it is,
            behind its bucket, at the id that a passed entry of the feature would have.

    Returns:
        `(ids, values, row_splits)` as `percentile_discretize`.

    Raises:
        tf.errors.InvalidArgumentError: as `percentile_discretize`.
    """
    return _discretize(
        library.twml_hashing_discretize,
        (ids, values, row_splits),
        (feature_ids, boundaries, boundary_splits),
        side=side,
        missing=missing,
        unknown=unknown,
        output_bits=output_bits,
        keep_inputs=keep_inputs,
    )


def _discretize(
    op: Any, batch: tuple[Any, Any, Any], buckets: tuple[Any, Any, Any], **attributes: Any
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    ids, values, row_splits, binary = csr_inputs(*batch)
    feature_ids, boundaries, boundary_splits = buckets
    out_ids, out_values, out_splits = op(
        ids,
        values,
        row_splits,
        _immutable_tensor(feature_ids, tf.int64),
        _immutable_tensor(boundaries, tf.float32),
        _immutable_tensor(boundary_splits, tf.int64),
        binary=binary,
        **attributes,
    )
    return out_ids, None if binary else out_values, out_splits


def _immutable_tensor(value: Any, dtype: tf.DType) -> tf.Tensor:
    """A tensor that nobody writes to, which the op keeps between calls.

    A reference variable of version 1 is assigned in place, in the memory of tensors read from it.
    """
    tensor = tf.convert_to_tensor(value, dtype)
    source = tensor
    while tf.is_symbolic_tensor(source) and source.op.type == "Identity":
        source = source.op.inputs[0]
    return tensor if source.dtype == source.dtype.base_dtype else tf.raw_ops.DeepCopy(x=tensor)


tf.no_gradient("Twml>PercentileDiscretize")
tf.no_gradient("Twml>HashingDiscretize")
