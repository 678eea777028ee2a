"""The hash of categories, and keys of the categories of fields and of their crosses.

The readers and `layers.StringHash` have the hash in common:

    id = SipHash-2-4(key of the column, token) mod 2^62

SipHash (Aumasson and Bernstein 2012) is what `tf.strings.to_hash_bucket_strong` computes, so a
graph of stock TensorFlow ops and the readers give the same ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from twml_ops import core

VERSION = 2  # that schemas record; the ids of another version cannot be computed
NUM_BUCKETS = 1 << 62
MISSING = -1  # the id of a category that is not there
NULLS = (
    *("-", "?", ".", "NA", "N/A", "n/a", "na", "#N/A", "#NA", "<NA>", "\\N", "NULL", "Null", "nil"),
    *("null", "NaN", "NAN", "nan", "-NaN", "-nan", "None", "NONE", "none"),
)
"""Texts that are missing values where numbers, integers or bools are expected: see
cc/core/category_text.h."""

_KEY_BITS = 62  # two keys can be added without an overflow
_CROSS_SALT = 2


@functools.lru_cache(maxsize=1 << 14)
def column_key(column: str) -> tuple[int, int]:
    """The key of a column's tokens.

    Its two halves are the hashes of the column's name under the keys (0, 0) and (1, 0).

    Args:
        column: name of the column.

    Returns:
        Two integers in [0, 2^62).
    """
    name = np.frombuffer(column.encode(), np.uint8)
    ends = np.array([0, len(name)])
    first, second = (
        int(core.hash_strings(name, ends, (k, 0), num_buckets=NUM_BUCKETS)[0]) for k in (0, 1)
    )
    return first, second


def id_keys(ids: Any, fields: Any, hash_ids: Callable[..., Any]) -> Any:
    """A 62-bit key for each id of a field; two ids have the same key with probability 2^-62.

    Args:
        ids: int64, NumPy or TensorFlow.
        fields: int64, the fields' numbers; broadcasts with `ids`.
        hash_ids: `core.hash_ids` or `ops.hash_ids`, by which both sides compute the same keys.
    """
    return hash_ids(hash_ids(ids, _KEY_BITS) + fields, _KEY_BITS)


def category_keys(
    ids: Any,
    crosses: Sequence[Sequence[int]],
    hash_ids: Callable[..., Any],
    take: Callable[..., Any],
    join: Callable[..., Any],
) -> Any:
    """A 62-bit key for each field and each cross of a batch.

    All crosses of one size are computed together, so that a graph has few operations, whose tracing
    would cost more than their execution.

    Args:
        ids: int64 [B, F], NumPy or TensorFlow.
        crosses: tuples of field positions.
        hash_ids: `core.hash_ids` or `ops.hash_ids`, by which both sides compute the same keys.
        take: `np.take` or `tf.gather`.
        join: `np.concatenate` or `tf.concat`.

    Returns:
        int64 [B, F + len(crosses)].
    """
    width = ids.shape[1]
    keys = id_keys(ids, np.arange(width, dtype=np.int64), hash_ids)
    if not crosses:
        return keys
    parts, order = [keys], list(range(width))
    for size in sorted({len(cross) for cross in crosses}):
        chosen = [i for i, cross in enumerate(crosses) if len(cross) == size]
        columns = [[crosses[i][position] for i in chosen] for position in range(size)]
        of_crosses = take(keys, columns[0], axis=1)
        for fields in columns[1:]:
            of_crosses = hash_ids(of_crosses + take(keys, fields, axis=1), _KEY_BITS, _CROSS_SALT)
        parts.append(of_crosses)
        order += [width + i for i in chosen]
    joined = join(parts, axis=1)
    places = sorted(range(len(order)), key=order.__getitem__)
    return joined if places == order else take(joined, places, axis=1)
