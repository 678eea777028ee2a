"""The steps of a scorer for models on fields; see `twml_ops/_scorer.py`.

A step reads and writes the arrays of a call by their names.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twml_ops import _core
from twml_ops._category_hash import category_keys, id_keys

Array = NDArray[Any]
Registers = dict[str, Any]
Step = Callable[[Registers], None]


def dequantized(table: Array, row_format: str | None = None, units: int | None = None) -> Array:
    """The table itself, or float32 [N, D] if its rows are scales, offsets and codes."""
    if row_format is None:
        return table
    scale, offset = table[:, :8].copy().view(np.float32).T[..., None]
    codes = table[:, 8:]
    if row_format == "int4":
        codes = np.concatenate([codes & 15, codes >> 4], axis=1)[:, :units]
    return (offset + scale * codes.astype(np.float32)).astype(np.float32)


def table_rows(table: Array, scale: Array | None, ids: Array) -> Array:
    """Rows of a table, float32 [..., D]."""
    rows = table[ids]
    if table.dtype == np.float32:
        return rows
    if scale is None:
        return (rows.astype(np.uint32) << 16).view(np.float32)  # bfloat16
    return rows.astype(np.float32) * scale[ids][..., None]


def _field_quantiles(
    numbers: str, present: str, buckets: str, ranks: str, *, boundaries: Array
) -> Step:
    finite = [row[np.isfinite(row)] for row in boundaries]

    def step(r: Registers) -> None:
        x, there = np.asarray(r[numbers], np.float32), np.asarray(r[present], bool)
        bucket = np.empty(x.shape, np.int64)
        rank = np.empty(x.shape, np.float32)
        for c, bounds in enumerate(finite):
            column = np.where(there[:, c], x[:, c], np.float32(0))
            bucket[:, c] = i = np.searchsorted(bounds, column)
            inner = (i > 0) & (i < len(bounds))
            low, high = (bounds[np.where(inner, k, 0)] if len(bounds) else 0 for k in (i - 1, i))
            width = np.where(inner, high - low, np.float32(1))
            position = np.where(inner, (column - low) / width, np.float32(0.5))
            rank[:, c] = 2 * (i.astype(np.float32) + position) / np.float32(len(bounds) + 1) - 1
        r[buckets] = np.where(there, bucket, -1)
        r[ranks] = np.where(there, rank, np.float32(0))

    return step


def _field_logarithms(
    numbers: str, present: str, out: str, *, scale: Array, offset: Array, limit: float
) -> Step:
    def step(r: Registers) -> None:
        there = np.asarray(r[present], bool)
        x = np.where(there, np.asarray(r[numbers], np.float32), np.float32(0))
        y = np.sign(x) * np.log1p(np.abs(x)) * scale + offset
        r[out] = np.where(there, np.clip(y, -limit, limit), np.float32(0)).astype(np.float32)

    return step


def _category_rows(
    *registers: str, keys: Array, rows: Array, single: int, hashed: Array | None = None
) -> Step:
    """The ids of `single` fields as a matrix, if there are any, then of each bag, to rows.

    Other ids have the row 0, or are hashed to the first rows of their fields.
    """
    inputs, outputs = registers[: len(registers) // 2], registers[len(registers) // 2 :]
    padded, rows = np.append(keys, -1), np.append(rows, 0)
    bags = range(single, single + len(inputs) - (single > 0))
    fields: list[Any] = [*([np.arange(single)] if single else []), *map(np.int64, bags)]

    def step(r: Registers) -> None:
        for name, out, field in zip(inputs, outputs, fields, strict=True):
            ids = np.asarray(r[name]).astype(np.int64)
            wanted = id_keys(ids, field, _core.hash_ids)
            row = np.searchsorted(keys, wanted)
            others = 0 if hashed is None else wanted % hashed[field]
            found = np.where(padded[row] == wanted, rows[row], others)
            r[out] = np.where(ids < 0, -1, found)

    return step


def _field_embedding(
    matrix: str | None,
    *registers: str,
    table: Array,
    scale: Array | None = None,
    num_rows: list[int],
    pooling: str | None,
    bag_combiner: str,
    checked: bool = False,
    **row_format: Any,
) -> Step:
    table = dequantized(table, **row_format)
    *parts, out = registers
    bags = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    sizes = np.array(num_rows, np.int64)
    starts = np.cumsum(sizes) - sizes
    fields = len(sizes) - len(bags)

    def rows_of(ids: Array, which: Any) -> Array:
        if checked and (ids >= sizes[which] - 1).any():
            raise ValueError("ids must be below the number of rows of their field minus 1")
        return starts[which] + np.where(ids < 0, 0, 1 + ids % (sizes[which] - 1))

    def step(r: Registers) -> None:
        vectors = []
        if matrix is not None:
            vectors.append(table_rows(table, scale, rows_of(r[matrix], slice(0, fields))))
        for i, (ids, values, row_splits) in enumerate(bags):
            rows = table_rows(table, scale, rows_of(r[ids], fields + i))
            weights = None if values is None else r[values]
            splits = r[row_splits]
            if bag_combiner != "sum":
                w = np.ones(len(rows), np.float32) if weights is None else weights
                row = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
                squared = w * w if bag_combiner == "sqrtn" else np.abs(w)
                total = np.bincount(row, squared, len(splits) - 1)
                total = np.sqrt(total) if bag_combiner == "sqrtn" else total
                none = np.zeros(len(w))
                weights = np.divide(w, total[row], out=none, where=total[row] != 0)
                weights = weights.astype(np.float32)
            vectors.append(
                _core.sparse_linear(np.arange(len(rows)), weights, splits, rows)[:, None]
            )
        y = vectors[0] if len(vectors) == 1 else np.concatenate(vectors, axis=1)
        if pooling is not None:
            power = {"sum": 0.0, "mean": 1.0, "sqrtn": 0.5}[pooling]
            y = y.sum(axis=1) / np.float32(len(sizes) ** power)
        r[out] = y

    return step


def _category_statistics(
    ids: str, out: str, *, keys: Array, statistics: Array, crosses: list[list[int]]
) -> Step:
    padded = np.append(keys, -1)

    def step(r: Registers) -> None:
        wanted = category_keys(
            r[ids].astype(np.int64), crosses, _core.hash_ids, np.take, np.concatenate
        )
        row = np.searchsorted(keys, wanted)
        r[out] = statistics[np.where(padded[row] == wanted, row, len(keys))]

    return step


def _dot_interaction(x: str, out: str) -> Step:
    def step(r: Registers) -> None:
        first, second = np.triu_indices(r[x].shape[1], 1)
        r[out] = (r[x] @ r[x].swapaxes(1, 2))[:, first, second]

    return step


def _dot(x: str, y: str, out: str) -> Step:
    def step(r: Registers) -> None:
        r[out] = np.einsum("be,bed->bd", r[x], r[y])

    return step


def _reshape(x: str, out: str, *, shape: list[int]) -> Step:
    def step(r: Registers) -> None:
        rest = math.prod(r[x].shape[1:]) // math.prod(d for d in shape if d != -1)
        r[out] = r[x].reshape(len(r[x]), *(rest if d == -1 else d for d in shape))

    return step


def _boosted_trees(
    *registers: str,
    num_optional: int,
    max_depth: int,
    features: Array,
    thresholds: Array,
    missing_left: Array,
    children: Array,
    values: Array,
    roots: Array,
) -> Step:
    x, *present, out = registers
    nodes = (features, thresholds, missing_left, children, values, roots)

    def step(r: Registers) -> None:
        numbers = np.asarray(r[x], np.float32)
        if present:
            there = np.asarray(r[present[0]], bool)
            optional = np.where(there, numbers[:, :num_optional], np.float32(np.nan))
            numbers = np.concatenate([optional, numbers[:, num_optional:]], axis=1)
        sums = _core.tree_sums(numbers, np.zeros(0, np.int64), *nodes, max_depth=max_depth)
        r[out] = sums[:, None]

    return step


def _mean(x: str, y: str, out: str) -> Step:
    def step(r: Registers) -> None:
        r[out] = (r[x] + r[y]) / np.float32(2)

    return step


def _logit(x: str, out: str) -> Step:
    def step(r: Registers) -> None:
        p = np.clip(r[x], np.float32(1e-7), np.float32(1 - 1e-7))
        r[out] = np.log(p) - np.log1p(-p)

    return step


def _combine_vectors(x: str, out: str, *, kernel: Array) -> Step:
    def step(r: Registers) -> None:
        r[out] = np.einsum("bfd,fl->bld", r[x], kernel)

    return step


def _layer_normalization(x: str, out: str, *, epsilon: float) -> Step:
    def step(r: Registers) -> None:
        centered = r[x] - r[x].mean(-1, keepdims=True)
        variance = (centered * centered).mean(-1, keepdims=True)
        r[out] = centered / np.sqrt(variance + epsilon)

    return step


def _patches(x: str, out: str, *, size: int) -> Step:
    before = (size - 1) // 2

    def step(r: Registers) -> None:
        rows, fields, width = r[x].shape
        padded = np.zeros((rows, fields + size - 1, width + size - 1), np.float32)
        padded[:, before : before + fields, before : before + width] = r[x]
        shifted = [
            padded[:, a : a + fields, b : b + width] for a in range(size) for b in range(size)
        ]
        r[out] = np.stack(shifted, axis=-1)

    return step


def _self_attention(query: str, key: str, value: str, out: str, *, num_heads: int) -> Step:
    def step(r: Registers) -> None:
        parts = (np.split(r[name], num_heads, axis=2) for name in (query, key, value))
        mixed = []
        for q, k, v in zip(*parts, strict=True):
            scores = q @ k.swapaxes(1, 2) / np.float32(math.sqrt(q.shape[2]))
            e = np.exp(scores - scores.max(axis=2, keepdims=True))
            mixed.append(e / e.sum(axis=2, keepdims=True) @ v)
        r[out] = np.concatenate(mixed, axis=2)

    return step


FIELD_STEPS: dict[str, Callable[..., Step]] = {
    "boosted_trees": _boosted_trees,
    "category_statistics": _category_statistics,
    "combine_vectors": _combine_vectors,
    "dot": _dot,
    "dot_interaction": _dot_interaction,
    "checked_field_embedding": functools.partial(_field_embedding, checked=True),
    "field_embedding": _field_embedding,
    "field_logarithms": _field_logarithms,
    "field_quantiles": _field_quantiles,
    "category_rows": _category_rows,
    "learned_hash": _category_rows,
    "layer_normalization": _layer_normalization,
    "logit": _logit,
    "mean": _mean,
    "patches": _patches,
    "reshape": _reshape,
    "self_attention": _self_attention,
}
