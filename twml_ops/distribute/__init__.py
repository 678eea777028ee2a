"""Training on several replicas or hosts, with tables in mind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twml_ops.distribute.sketches import merged_sketch
from twml_ops.distribute.strategy import mirrored
from twml_ops.placement.exchange import received_bytes

if TYPE_CHECKING:
    from twml_ops.distribute.hybrid import (
        BuiltOnce,
        Cluster,
        ClusterError,
        HybridTrainer,
        exit_if_lost,
        follow,
        serve,
    )

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


def __getattr__(name: str) -> Any:
    # Layers need this package, and hybrid training needs the optimizers, which need it too.
    if name in __all__:
        from twml_ops.distribute import hybrid

        return getattr(hybrid, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
