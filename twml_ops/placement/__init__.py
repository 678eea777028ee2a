"""Where tables are, and how the replicas that train them agree: asked by layers and optimizers.

A layer asks the placement in force for a new table, and the placement in charge of a table for
products with it; an optimizer asks the latter for the gradient of all replicas. Every replica
having the whole table (`Placement`) is the default. A custom placement derives from `Placement` and
is put in force with `placement_scope`.
"""

from typing import TYPE_CHECKING

from twml_ops._deprecated import deprecated_aliases
from twml_ops.placement.base import (
    REPLICATED,
    AddWeight,
    Placement,
    current_placement,
    grouped_sparse_linear,
    in_replica_group,
    placement_of,
    placement_scope,
    set_placement,
)
from twml_ops.placement.collectives import received_bytes
from twml_ops.placement.entries import CsrEntries
from twml_ops.placement.sharded import ShardedPlacement

__all__ = [
    "REPLICATED",
    "AddWeight",
    "CsrEntries",
    "Placement",
    "ShardedPlacement",
    "current_placement",
    "grouped_sparse_linear",
    "in_replica_group",
    "placement_of",
    "placement_scope",
    "received_bytes",
    "set_placement",
]

if not TYPE_CHECKING:
    __getattr__ = deprecated_aliases(
        __name__,
        {
            "WHOLE": "REPLICATED",
            "Add": "AddWeight",
            "Entries": "CsrEntries",
            "Sharded": "ShardedPlacement",
            "among_replicas": "in_replica_group",
            "in_force": "current_placement",
            "of": "placement_of",
            "put": "set_placement",
            "using": "placement_scope",
        },
    )
