"""Merging the quantile sketches of replicas."""

from __future__ import annotations

import functools

from twml_ops.ops.quantile_sketch import SketchState, sketch_merge
from twml_ops.placement import collectives


def merge_replica_sketches(state: SketchState) -> SketchState:
    """Merges the quantile sketches of all replicas.

    Every replica must call this with its own sketch.

    Args:
        state: The sketch of this replica.

    Returns:
        The sketch of all values that the replicas' sketches were updated with, the same on every
        replica; outside of a replica context, `state` itself.
    """
    by_tensor = collectives.gather_per_replica(list(state))
    sketches = [SketchState(*tensors) for tensors in zip(*by_tensor, strict=True)]
    return functools.reduce(sketch_merge, sketches)
