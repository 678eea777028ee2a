"""Where tables are, and how the replicas that train them agree: asked by layers and optimizers.

A layer asks the placement in force for a new table, and the placement in charge of a table for
products with it; an optimizer asks the latter for the gradient of all replicas. Every replica
having the whole table (`Placement`) is the default. A custom placement derives from `Placement` and
is put in force with `using`.
"""

from twml_ops.placement.base import (
    WHOLE,
    Add,
    Placement,
    among_replicas,
    grouped_sparse_linear,
    in_force,
    of,
    put,
    using,
)
from twml_ops.placement.exchange import received_bytes
from twml_ops.placement.partition import Entries
from twml_ops.placement.sharded import Sharded

__all__ = [
    "WHOLE",
    "Add",
    "Entries",
    "Placement",
    "Sharded",
    "among_replicas",
    "grouped_sparse_linear",
    "in_force",
    "of",
    "put",
    "received_bytes",
    "using",
]
