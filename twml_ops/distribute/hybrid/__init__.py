"""Hybrid training: tables stay on parameter servers, which multiply; the rest is on workers."""

from twml_ops.distribute.hybrid.calls import exit_if_lost
from twml_ops.distribute.hybrid.cluster import Cluster, ClusterError, serve
from twml_ops.distribute.hybrid.trainer import HybridTrainer

__all__ = ["Cluster", "ClusterError", "HybridTrainer", "exit_if_lost", "serve"]
