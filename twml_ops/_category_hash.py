"""The hash of categories: what the readers and `layers.StringHash` have in common.

    id = SipHash-2-4(key of the column, token) mod 2^62

SipHash (Aumasson and Bernstein 2012) is what `tf.strings.to_hash_bucket_strong` computes, so a
graph of stock TensorFlow ops and the readers give the same ids.
"""

from __future__ import annotations

import functools

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
