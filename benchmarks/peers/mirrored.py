"""The model of clicks, trained by two replicas of a MirroredStrategy in one process."""

from __future__ import annotations

from typing import Any

from benchmarks.peers import clicks
from twml_ops import peers

REPLICAS = 2


def measure(group: peers.PeerGroup, setting: dict[str, Any]) -> dict[str, Any]:
    """Trains on batches of the examples of two workers.

    Args:
        group: one rank, which is not used.
        setting: `batches`.

    Returns:
        See `clicks.fit`.
    """
    del group
    from twml_ops import distribute

    strategy = distribute.mirrored_strategy(REPLICAS)
    data = clicks.dataset(setting["batches"], 0, REPLICAS * clicks.BATCH)
    with strategy.scope():
        compiled = clicks.compile_model(clicks.model())
    return clicks.fit(compiled, data, setting["batches"], [])
