"""The steps of a scorer on batches of sparse ids; see `twml_ops/_scorer.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.core.numpy_field_steps import Array, Registers, Step, dequantized, table_rows
from twml_ops import _core


def _sparse_linear(
    ids: str,
    values: str | None,
    row_splits: str,
    out: str,
    *,
    table: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    **row_format: Any,
) -> Step:
    table = dequantized(table, **row_format)
    compressed = table.dtype != np.float32

    def step(r: Registers) -> None:
        i, v = r[ids], None if values is None else r[values]
        if compressed:
            y = _compressed_product(i, v, r[row_splits], table, scale)
        else:
            y = _core.sparse_linear(i, v, r[row_splits], table)
        r[out] = y if bias is None else np.add(y, bias, out=y)

    return step


def _compressed_product(
    ids: Array, values: Array | None, row_splits: Array, table: Array, scale: Array | None
) -> Array:
    """The product with a bfloat16 or int8 table, whose rows are converted to float32.

    The scales of int8 rows are multiplied into the values.
    """
    outside = (ids < 0) | (ids >= len(table))
    if outside.any():
        k = int(np.argmax(outside))
        raise ValueError(f"ids[{k}] = {ids[k]} is out of range [0, {len(table)})")
    if scale is None:
        rows = table_rows(table, None, ids)
    else:
        rows = table[ids].astype(np.float32)
        values = scale[ids] if values is None else values * scale[ids]
    return _core.sparse_linear(np.arange(len(ids)), values, row_splits, rows)


def _max_norm(
    ids: str,
    values: str | None,
    row_splits: str,
    out: str,
    *,
    max_abs: Array,
    bias: Array | None = None,
    **options: Any,
) -> Step:
    del row_splits

    def step(r: Registers) -> None:
        v = np.ones(len(r[ids]), np.float32) if values is None else r[values]
        r[out] = _core.max_norm(r[ids], v, max_abs, bias, **options)

    return step


def _online_standardize(
    ids: str,
    values: str | None,
    row_splits: str,
    out: str,
    *,
    moments: Array,
    bias: Array | None = None,
    epsilon: float,
    clip: float,
    nonfinite: str,
) -> Step:
    del row_splits
    count, mean, m2 = moments.T

    def step(r: Registers) -> None:
        i = r[ids]
        v = np.ones(len(i), np.float32) if values is None else r[values]
        if nonfinite == "error" and np.isinf(v).any():
            raise ValueError("values is not finite")
        known = np.isfinite(v) & (count[i] > 0)
        with np.errstate(all="ignore"):
            sd = np.sqrt(np.maximum(m2[i] / count[i], 0))
            z = np.where(known, (v - mean[i]) / np.maximum(sd, epsilon), 0)
        y = np.clip(z, -clip, clip).astype(np.float32)
        r[out] = y if bias is None else y + bias[i]

    return step


def _discretizer(method: str) -> Callable[..., Step]:
    def make(
        ids: str,
        values: str | None,
        row_splits: str,
        out_ids: str,
        out_values: str | None,
        out_splits: str,
        *,
        feature_ids: Array,
        boundaries: Array,
        boundary_splits: Array,
        **options: Any,
    ) -> Step:
        buckets = _core.Buckets(feature_ids, boundaries, boundary_splits)
        discretize = getattr(buckets, method)

        def step(r: Registers) -> None:
            v = None if values is None else r[values]
            i, v, r[out_splits] = discretize(r[ids], v, r[row_splits], **options)
            r[out_ids] = i
            if out_values is not None:
                r[out_values] = v

        return step

    return make


def _hash_ids(ids: str, out: str, *, bits: int) -> Step:
    def step(r: Registers) -> None:
        r[out] = _core.hash_ids(r[ids], bits)

    return step


def _wrap_ids(ids: str, out: str, *, num_rows: int) -> Step:
    def step(r: Registers) -> None:
        r[out] = r[ids] % num_rows

    return step


def _dynamic_lookup(ids: str, out: str, *, keys: Array, index: Array, seed: int) -> Step:
    del seed  # of the hash table, which leads to the same rows as a search
    used = np.unique(index[index >= 0])
    known = dict(zip(keys[used].tolist(), used.tolist(), strict=True))

    def step(r: Registers) -> None:
        rows = [known.get(i, 0) for i in np.asarray(r[ids]).tolist()]
        r[out] = np.array(rows, np.int64)

    return step


SPARSE_STEPS: dict[str, Callable[..., Step]] = {
    "dynamic_lookup": _dynamic_lookup,
    "hash_ids": _hash_ids,
    "hashing_discretize": _discretizer("hashing_discretize"),
    "max_norm": _max_norm,
    "online_standardize": _online_standardize,
    "percentile_discretize": _discretizer("percentile_discretize"),
    "sparse_linear": _sparse_linear,
    "wrap_ids": _wrap_ids,
}
