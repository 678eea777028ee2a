"""`percentile_discretize` and `hashing_discretize`: continuous features to buckets."""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._library import library
from twml_ops.ops._tape import device_of

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
    """Replaces each (feature, value) by (id of its bucket, 1), with contiguous bucket ids.

    The bucket is `numpy.searchsorted(boundaries of the feature, value, side)`; infinities are
    ordinary values. Feature f with n boundaries owns n + 1 consecutive ids, which start at
    `boundary_splits[f] + f * (2 if missing == "bucket" else 1)`, followed by one id for NaN if
    `missing` is "bucket". After the ids of the last feature comes the pass-through space of
    2^pass_through_bits ids.

    The cost is O(K log n) for each batch. The first batch after a change of the boundaries also
    checks and indexes them. `values` gets no gradient.

    Args:
        ids: int32 or int64 [K], feature ids; any integers.
        values: float32 [K], or None for a binary batch (all 1).
        row_splits: int64 [B + 1], CSR offsets.
        feature_ids: int64 [F], the adapted features, strictly ascending.
        boundaries: float32 [boundary_splits[F]], non-decreasing within each feature, without NaN.
            The op runs on the GPU if this is a variable there, and then does not check the order.
        boundary_splits: int64 [F + 1], CSR offsets of `boundaries`.
        side: "left": the bucket is `#{boundaries < value}`, for intervals (a, b]. "right":
            `#{boundaries <= value}`, for intervals [a, b).
        missing: "bucket": a NaN gets a bucket of its own. "drop": the entry is dropped.
        unknown: What happens to entries of features that are not in `feature_ids`. "pass": the
            entry keeps its value (NaN only if `missing` is not "drop") and gets an id hashed from
            the feature into the pass-through space. "drop": the entry is dropped. "error": the op
            fails.
        pass_through_bits: Size of the pass-through space, 1 to 62.
        keep_inputs: Whether an entry of an adapted feature whose value is not NaN is also kept,
            directly after its bucket, with its value, at id (number of all buckets) + f. The
            pass-through space then follows these F ids. Passed entries are not duplicated.

    Returns:
        `(ids int64 [L], values float32 [L], row_splits int64 [B + 1])` with the entries in their
        order; values are None if `values` was None. L < K only if entries were dropped, L > K only
        with `keep_inputs`.

    Raises:
        tf.errors.InvalidArgumentError: A feature is unknown and `unknown` is "error", or boundaries
            or offsets are invalid.
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
    """Replaces each (feature, value) by (id of its bucket, 1), with hashed bucket ids.

    The buckets are the same as of `percentile_discretize`; their ids are hashed from (feature,
    bucket) into [0, 2^output_bits). The id of a bucket depends on its feature and its number alone,
    so it does not change when other features are added. The NaN bucket of a feature has the same id
    for any number of boundaries. The id of a passed entry is hashed from its feature. Ids may
    collide. The hash is that of `hash_ids`, salted with the feature id. `values` gets no gradient.

    Args:
        ids: int32 or int64 [K], feature ids; any integers.
        values: float32 [K], or None for a binary batch (all 1).
        row_splits: int64 [B + 1], CSR offsets.
        feature_ids: int64 [F], the adapted features, strictly ascending.
        boundaries: float32 [boundary_splits[F]], non-decreasing within each feature, without NaN.
            The op runs on the GPU if this is a variable there, and then does not check the order.
        boundary_splits: int64 [F + 1], CSR offsets of `boundaries`.
        output_bits: Size of the id space, 1 to 62.
        side: As in `percentile_discretize`.
        missing: As in `percentile_discretize`.
        unknown: As in `percentile_discretize`.
        keep_inputs: Whether an entry of an adapted feature whose value is not NaN is also kept,
            directly after its bucket, with its value, at the id that a passed entry of the feature
            would have.

    Returns:
        `(ids, values, row_splits)` as from `percentile_discretize`.

    Raises:
        tf.errors.InvalidArgumentError: A feature is unknown and `unknown` is "error", or boundaries
            or offsets are invalid.
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
    with library.beside(device_of(boundaries)):
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
    """A tensor whose memory is not written to, so that the op may cache what it derives from it.

    A reference variable of version 1 is assigned in place, in memory that it shares with tensors
    read from it; such a tensor is copied.
    """
    tensor = tf.convert_to_tensor(value, dtype)
    source = tensor
    while tf.is_symbolic_tensor(source) and source.op.type == "Identity":
        source = source.op.inputs[0]
    return tensor if source.dtype == source.dtype.base_dtype else tf.raw_ops.DeepCopy(x=tensor)


tf.no_gradient("Twml>PercentileDiscretize")
tf.no_gradient("Twml>HashingDiscretize")
