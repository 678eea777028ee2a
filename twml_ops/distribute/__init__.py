"""Distributed training: replicas of one process, and tables on parameter servers.

`mirrored_strategy` trains replicas with TensorFlow's `MirroredStrategy`. `HybridTrainer` trains a
Keras model whose tables are sharded over parameter servers, `serve` runs such a server, and
`twml_ops.distribute.launch` starts a whole cluster on one machine. `PeerAveraging` trains peer to
peer, without a server.
"""

from twml_ops.distribute.parameter_server import (
    ChiefBuiltModel,
    ChiefDecisions,
    Cluster,
    ClusterError,
    FitResult,
    HybridTrainer,
    SavedSlots,
    exit_on_cluster_error,
    iter_checkpoints,
    serve,
)
from twml_ops.distribute.peer_averaging import PeerAveraging
from twml_ops.distribute.replicas import merge_replica_sketches, mirrored_strategy
from twml_ops.placement.collectives import received_bytes

__all__ = [
    "ChiefBuiltModel",
    "ChiefDecisions",
    "Cluster",
    "ClusterError",
    "FitResult",
    "HybridTrainer",
    "PeerAveraging",
    "SavedSlots",
    "exit_on_cluster_error",
    "iter_checkpoints",
    "merge_replica_sketches",
    "mirrored_strategy",
    "received_bytes",
    "serve",
]


def __dir__() -> list[str]:
    return sorted(__all__)
