"""The ops in stock TensorFlow ops: the same semantics, slower, on any TensorFlow server.

`library` has a function for each op, with the name and the arguments of the op's generated wrapper
(cc/tf/ops), so it can replace the op library's module. `twml_ops.export.to_stock_tf` traces models
with it, and `twml_ops.ops` falls back to it if no op library fits the running TensorFlow. Gradients
are the gradients of the stock ops; they also have unique ascending ids.

These ops support portable export, XLA (`ops.xla`) and training in a single process without a
compiler. Everything else needs the op library and is refused without it
(`_library.require_native`).
"""

from __future__ import annotations

from types import SimpleNamespace

from twml_ops.ops.stock.apply_rows import apply_rows
from twml_ops.ops.stock.average_rows import average_rows
from twml_ops.ops.stock.discretize import hashing_discretize, percentile_discretize
from twml_ops.ops.stock.dynamic_lookup import dynamic_lookup
from twml_ops.ops.stock.hash import hash_ids
from twml_ops.ops.stock.lookups import field_rows, find_keys, gather_dot
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
from twml_ops.ops.stock.tree_sums import tree_sums

_OPS = (
    apply_rows,
    average_rows,
    csr_from_indices,
    dynamic_lookup,
    field_rows,
    find_keys,
    gather_dot,
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
    tree_sums,
    unpack_entries,
)

library = SimpleNamespace(**{f"twml_{op.__name__}": op for op in _OPS})
"""Replacement of the op library's module."""

_STOCK_GRADIENT = "stock ops have gradients of their own"
_NO_GROUPS = "stock ops group entries by themselves"
_NO_MARKS = "stock ops do not mark the rows that they write"
LIBRARY_ONLY = {
    "twml_sparse_linear_values_grad": _STOCK_GRADIENT,
    "twml_resource_sparse_linear_values_grad": _STOCK_GRADIENT,
    "twml_sparse_linear_weights_grad": _STOCK_GRADIENT,
    "twml_take_changed_rows": _NO_MARKS,
    "twml_keep_changed_rows": _NO_MARKS,
    "twml_release_changed_rows": _NO_MARKS,
    "twml_mark_changed_rows": _NO_MARKS,
    **dict.fromkeys(
        (
            *("twml_open_tiered_rows", "twml_attach_slots", "twml_prefetch_rows"),
            *("twml_open_server_rows", "twml_close_server_rows"),
            *("twml_read_tiered_rows", "twml_write_tiered_rows", "twml_tiered_statistics"),
            *("twml_tiered_sparse_linear", "twml_tiered_sparse_linear_values_grad"),
        ),
        "they do not read or write files",
    ),
    **dict.fromkeys(
        (
            *("twml_message_port", "twml_connect_messages"),
            *("twml_send_message", "twml_receive_message"),
        ),
        "TensorFlow transfers tensors between processes by itself",
    ),
    **dict.fromkeys(
        ("twml_rows_to_int8", "twml_rows_from_int8"),
        "only the messages of parameter servers have such rows",
    ),
    "twml_shared_dynamic_lookup": "only parameter servers have several processes that look up ids",
    "twml_join_batches": "only parameter servers join batches",
    "twml_group_ids": _NO_GROUPS,
    "twml_group_batch": _NO_GROUPS,
    "twml_group_packed_entries": _NO_GROUPS,
    "twml_sparse_linear_backward_apply": "it fuses a gradient op of the library with the update",
}
"""The ops without a replacement, and why. Training on parameter servers needs the gradients."""

__all__ = ["LIBRARY_ONLY", "library"]
