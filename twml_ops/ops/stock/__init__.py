"""The ops made of stock TensorFlow: the same semantics, slower, and servable anywhere.

`library` has a function for each op, with the name and the arguments of the op's generated wrapper
(cc/tf/ops), so it can stand where the op library stands: `twml_ops.export.to_stock_tf` traces
models through it, and `twml_ops.ops` falls back to it where no op library fits the running
TensorFlow. Gradients are those of the stock ops; they too name unique ascending ids.

They serve portable export, XLA (`static`) and training in a single process without a compiler. What
is outside of that needs the op library and is refused without it (`_library.require_native`).
"""

from __future__ import annotations

from types import SimpleNamespace

from twml_ops.ops.stock.apply_rows import apply_rows
from twml_ops.ops.stock.discretize import hashing_discretize, percentile_discretize
from twml_ops.ops.stock.hash import hash_ids
from twml_ops.ops.stock.max_norm import max_norm
from twml_ops.ops.stock.online_standardize import online_standardize
from twml_ops.ops.stock.packed_entries import pack_entries, unpack_entries
from twml_ops.ops.stock.quantile_sketch import (
    quantile_sketch_merge,
    quantile_sketch_quantiles,
    quantile_sketch_update,
)
from twml_ops.ops.stock.sparse_linear import (
    csr_from_indices,
    grouped_sparse_linear,
    resource_sparse_linear,
    row_splits_from_indices,
    sparse_linear,
    sum_duplicates,
)

_OPS = (
    apply_rows,
    csr_from_indices,
    grouped_sparse_linear,
    hash_ids,
    hashing_discretize,
    max_norm,
    online_standardize,
    pack_entries,
    percentile_discretize,
    quantile_sketch_merge,
    quantile_sketch_quantiles,
    quantile_sketch_update,
    resource_sparse_linear,
    row_splits_from_indices,
    sparse_linear,
    sum_duplicates,
    unpack_entries,
)

library = SimpleNamespace(**{f"twml_{op.__name__}": op for op in _OPS})
"""What stands for the op library's module."""

_BY_STOCK_OPS = "the gradient of the stand-in of the forward op is that of its stock ops"
LIBRARY_ONLY = {
    "twml_sparse_linear_values_grad": _BY_STOCK_OPS,
    "twml_resource_sparse_linear_values_grad": _BY_STOCK_OPS,
    "twml_sparse_linear_weights_grad": _BY_STOCK_OPS,
    "twml_sparse_linear_backward_apply": "it fuses gradient ops of the library with the update",
}
"""The ops of the library that nothing stands for, and why. Training on servers needs them."""

__all__ = ["LIBRARY_ONLY", "library"]
