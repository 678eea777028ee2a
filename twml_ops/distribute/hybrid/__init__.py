"""Hybrid training: tables stay on parameter servers, which multiply; the rest is on workers."""

from twml_ops.distribute.hybrid.cluster import Cluster, ClusterError, serve
from twml_ops.distribute.hybrid.trainer import HybridTrainer

__all__ = ["Cluster", "ClusterError", "HybridTrainer", "serve"]
