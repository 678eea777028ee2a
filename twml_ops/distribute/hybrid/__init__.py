"""Hybrid training: tables stay on parameter servers, which multiply; the rest is on workers."""

from twml_ops.distribute.hybrid.built_once import BuiltOnce
from twml_ops.distribute.hybrid.calls import exit_if_lost
from twml_ops.distribute.hybrid.cluster import Cluster, ClusterError, serve
from twml_ops.distribute.hybrid.following import follow
from twml_ops.distribute.hybrid.trainer import HybridTrainer

__all__ = [
    "BuiltOnce",
    "Cluster",
    "ClusterError",
    "HybridTrainer",
    "exit_if_lost",
    "follow",
    "serve",
]
