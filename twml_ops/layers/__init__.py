"""Keras layers for very sparse batches."""

from twml_ops.layers.grouped_sparse_linear import GroupedSparseLinear, SparseTable
from twml_ops.layers.hashing_discretizer import HashingDiscretizer
from twml_ops.layers.max_norm import MaxNorm
from twml_ops.layers.percentile_discretizer import PercentileDiscretizer
from twml_ops.layers.sparse_linear import SparseLinear

__all__ = [
    "GroupedSparseLinear",
    "HashingDiscretizer",
    "MaxNorm",
    "PercentileDiscretizer",
    "SparseLinear",
    "SparseTable",
]
