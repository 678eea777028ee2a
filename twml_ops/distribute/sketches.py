"""Quantile sketches of replicas."""

from __future__ import annotations

import functools

from twml_ops.ops.quantile_sketch import SketchState, sketch_merge
from twml_ops.placement import collectives


def merge_replica_sketches(state: SketchState) -> SketchState:
    """The sketch that has seen what the sketches of all replicas have: merged, not averaged.

    Called by every replica with its own state; every replica gets the same. Outside of replicas,
    `state` itself.
    """
    by_tensor = collectives.gather_per_replica(list(state))
    sketches = [SketchState(*tensors) for tensors in zip(*by_tensor, strict=True)]
    return functools.reduce(sketch_merge, sketches)
