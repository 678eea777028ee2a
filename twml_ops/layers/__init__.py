"""Keras layers for very sparse batches."""

from twml_ops.layers.grouped_sparse_linear import GroupedSparseLinear, SparseTable
from twml_ops.layers.hashing_discretizer import HashingDiscretizer
from twml_ops.layers.max_norm import MaxNorm
from twml_ops.layers.mdl_discretizer import MDLDiscretizer
from twml_ops.layers.online_standardize import OnlineStandardize
from twml_ops.layers.percentile_discretizer import PercentileDiscretizer
from twml_ops.layers.sparse_linear import SparseLinear

__all__ = [
    "GroupedSparseLinear",
    "HashingDiscretizer",
    "MDLDiscretizer",
    "MaxNorm",
    "OnlineStandardize",
    "PercentileDiscretizer",
    "SparseLinear",
    "SparseTable",
]
