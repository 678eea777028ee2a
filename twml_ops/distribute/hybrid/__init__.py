"""Hybrid training: tables on parameter servers, which multiply; the dense layers on workers."""

from twml_ops.distribute.hybrid.checkpoint_iterator import iter_checkpoints
from twml_ops.distribute.hybrid.chief_built_model import ChiefBuiltModel
from twml_ops.distribute.hybrid.cluster import Cluster, ClusterError, serve
from twml_ops.distribute.hybrid.timeouts import exit_on_cluster_error
from twml_ops.distribute.hybrid.trainer import FitResult, HybridTrainer

__all__ = [
    "ChiefBuiltModel",
    "Cluster",
    "ClusterError",
    "FitResult",
    "HybridTrainer",
    "exit_on_cluster_error",
    "iter_checkpoints",
    "serve",
]
