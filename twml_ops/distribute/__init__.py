"""Training on several replicas or hosts, with tables in mind."""

from twml_ops.distribute.hybrid import (
    BuiltOnce,
    Cluster,
    ClusterError,
    HybridTrainer,
    exit_if_lost,
    follow,
    serve,
)
from twml_ops.distribute.sketches import merged_sketch
from twml_ops.distribute.strategy import mirrored
from twml_ops.placement.collectives import received_bytes

__all__ = [
    "BuiltOnce",
    "Cluster",
    "ClusterError",
    "HybridTrainer",
    "exit_if_lost",
    "follow",
    "merged_sketch",
    "mirrored",
    "received_bytes",
    "serve",
]
