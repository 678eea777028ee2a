"""Where a table is stored, and how the replicas that train it exchange entries and gradients.

A layer asks `current_placement()` for the placement of a new table, and `placement_of(table)` for
products with it. An optimizer asks `placement_of(variable)` for the gradient that all replicas
together have. By default every replica has the whole table (`REPLICATED`). A custom placement
derives from `Placement` and is selected with `placement_scope`.
"""

from twml_ops.placement.base import (
    REPLICATED,
    AddWeight,
    Placement,
    ProductModule,
    current_placement,
    grouped_sparse_linear,
    in_replica_group,
    placement_of,
    placement_scope,
    set_placement,
)
from twml_ops.placement.collectives import received_bytes
from twml_ops.placement.copy_tables import ZeroTables, copy_weights
from twml_ops.placement.device import DevicePlacement
from twml_ops.placement.entries import CsrEntries
from twml_ops.placement.sharded import ShardedPlacement
from twml_ops.placement.tiered import LargeTables, Tiered, TieredPlacement

__all__ = [
    "REPLICATED",
    "AddWeight",
    "CsrEntries",
    "DevicePlacement",
    "LargeTables",
    "Placement",
    "ProductModule",
    "ShardedPlacement",
    "Tiered",
    "TieredPlacement",
    "ZeroTables",
    "copy_weights",
    "current_placement",
    "grouped_sparse_linear",
    "in_replica_group",
    "placement_of",
    "placement_scope",
    "received_bytes",
    "set_placement",
]
