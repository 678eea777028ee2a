"""The TensorFlow ops as typed functions with gradients.

All functions take tensors, or anything that `tf.convert_to_tensor` accepts, and check their inputs.
A call that raises has changed nothing. In the shapes, B is the number of rows of a batch, K the
number of its entries, N the size of the id space and D the width of a table.
"""

from twml_ops.ops.apply_rows import (
    apply_rows,
    bias_corrected,
    is_sparse_linear_gradient,
    sparse_linear_gradient_inputs,
)
from twml_ops.ops.average_rows import average_rows
from twml_ops.ops.changed_rows import ChangedRows, TakenRows
from twml_ops.ops.discretize import hashing_discretize, percentile_discretize
from twml_ops.ops.dynamic_lookup import dynamic_lookup
from twml_ops.ops.field_rows import field_rows
from twml_ops.ops.grouped_sparse_linear import grouped_sparse_linear
from twml_ops.ops.hash import hash_ids
from twml_ops.ops.int8_rows import rows_from_int8, rows_to_int8
from twml_ops.ops.lookups import find_keys, gather_dot
from twml_ops.ops.max_norm import max_norm
from twml_ops.ops.online_standardize import online_standardize
from twml_ops.ops.packed_entries import join_batches, pack_entries, unpack_entries
from twml_ops.ops.quantile_sketch import (
    QuantileSketch,
    SketchState,
    empty_sketch,
    sketch_merge,
    sketch_quantiles,
    sketch_update,
)
from twml_ops.ops.sparse_linear import (
    csr_from_indices,
    row_splits_from_indices,
    sparse_linear,
    sum_duplicates,
    weights_grad,
)
from twml_ops.ops.tree_sums import tree_sums
from twml_ops.ops.xla_compatible import xla_compatible

__all__ = [
    "ChangedRows",
    "QuantileSketch",
    "SketchState",
    "TakenRows",
    "apply_rows",
    "average_rows",
    "bias_corrected",
    "csr_from_indices",
    "dynamic_lookup",
    "empty_sketch",
    "field_rows",
    "find_keys",
    "gather_dot",
    "grouped_sparse_linear",
    "hash_ids",
    "hashing_discretize",
    "is_sparse_linear_gradient",
    "join_batches",
    "max_norm",
    "online_standardize",
    "pack_entries",
    "percentile_discretize",
    "row_splits_from_indices",
    "rows_from_int8",
    "rows_to_int8",
    "sketch_merge",
    "sketch_quantiles",
    "sketch_update",
    "sparse_linear",
    "sparse_linear_gradient_inputs",
    "sum_duplicates",
    "tree_sums",
    "unpack_entries",
    "weights_grad",
    "xla_compatible",
]


def __dir__() -> list[str]:
    return sorted(__all__)
