"""Keys of the categories of fields and of their crosses, equal in NumPy and in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_KEY_BITS = 62  # two keys can be added without an overflow
_CROSS_SALT = 2


def id_keys(ids: Any, fields: Any, hash_ids: Callable[..., Any]) -> Any:
    """A 62-bit key for each id of a field; two ids have the same key with probability 2^-62.

    Args:
        ids: int64, NumPy or TensorFlow.
        fields: int64, the fields' numbers; broadcasts with `ids`.
        hash_ids: `core.hash_ids` or `ops.hash_ids`, by which both sides compute the same keys.
    """
    return hash_ids(hash_ids(ids, _KEY_BITS) + fields, _KEY_BITS)


def category_keys(
    ids: Any, crosses: Sequence[Sequence[int]], hash_ids: Callable[..., Any], stack: Any
) -> Any:
    """A 62-bit key for each field and each cross of a batch.

    Args:
        ids: int64 [B, F], NumPy or TensorFlow.
        crosses: tuples of field positions.
        hash_ids: `core.hash_ids` or `ops.hash_ids`, by which both sides compute the same keys.
        stack: `np.stack` or `tf.stack`.

    Returns:
        int64 [B, F + len(crosses)].
    """
    width = ids.shape[1]
    keys = id_keys(ids, np.arange(width, dtype=np.int64), hash_ids)
    if not crosses:
        return keys
    columns = [keys[:, f] for f in range(width)]
    for first, *rest in crosses:
        key = columns[first]
        for field in rest:
            key = hash_ids(key + columns[field], _KEY_BITS, _CROSS_SALT)
        columns.append(key)
    return stack(columns, axis=1)
