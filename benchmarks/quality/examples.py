"""The examples of a source as arrays, for libraries that take the whole data set at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from twml_ops.data import Source

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Examples:
    """R examples.

    Attributes:
        numbers: float32 [R, C], NaN where a number is missing.
        categories: int64 [R, F], hashes of categories, -1 where a category is missing.
        sparse: float32 CSR matrix [R, N] of raw `id:value` features; N may be 0.
        labels: float32 [R], 0 or 1.
    """

    numbers: Array
    categories: Array
    sparse: Any
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def dense(self) -> Array:
        """All features but the categories, float32 [R, C + N]."""
        return np.hstack([self.numbers, self.sparse.toarray()])


def read(source: Source) -> Examples:
    """Reads a whole source.

    Args:
        source: with one label and without bags of categories.

    Raises:
        ValueError: the source has several labels, or bags.
    """
    schema = source.schema
    if schema.bags or len(schema.labels) > 1:
        raise ValueError(
            f"source must have one label and no bags, got {schema.labels} and {schema.bags}"
        )
    blocks = list(source.blocks())
    labels = np.concatenate([b.labels for b in blocks])
    rows = len(labels)
    numbers, categories = np.zeros((rows, 0), np.float32), np.zeros((rows, 0), np.int64)
    sparse = scipy.sparse.csr_matrix((rows, 0), dtype=np.float32)
    groups: list[Any] = [b.groups for b in blocks]
    if schema.continuous:
        numbers = np.concatenate([g["continuous"].table for g in groups])
    if schema.categorical:
        categories = np.concatenate([g["categorical"].table for g in groups])
    if schema.sparse_dim:
        parts = [_matrix(g["sparse"], schema.sparse_dim) for g in groups]
        sparse = scipy.sparse.vstack(parts, format="csr")
    return Examples(numbers, categories, sparse, labels)


def _matrix(rows: Any, dim: int) -> Any:
    values = np.ones(len(rows.ids), np.float32) if rows.values is None else rows.values
    shape = (len(rows.row_splits) - 1, dim)
    return scipy.sparse.csr_matrix((values, rows.ids, rows.row_splits), shape)
