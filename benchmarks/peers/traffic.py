"""Bytes that ranks on hosts of their own send, counted at their network interfaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.distributed.network import INTERFACE
from twml_ops import peers

COUNTER = Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes")
WARM_UP = 2  # exchanges, in which connections are made


def measure(group: peers.PeerGroup, setting: dict[str, Any]) -> dict[str, Any]:
    """Exchanges a vector and counts the bytes.

    Args:
        group: the ranks.
        setting: `dataflow`; `floats`, the size of the vector; `exchanges`.

    Returns:
        `bytes` that this rank's host has sent in an exchange; `receivers` of this rank.
    """
    shared = peers.SharedVector.create(
        [setting["floats"]], dataflow=setting["dataflow"], group=group
    )
    before = 0
    for number in range(WARM_UP + setting["exchanges"]):
        if number == WARM_UP:
            before = int(COUNTER.read_text())
        shared.scatter()
        shared.barrier()
        shared.gather()
    group.all_sum([0])
    sent = int(COUNTER.read_text()) - before
    receivers = len(shared.channel.receivers)
    return {"bytes": sent / setting["exchanges"], "receivers": receivers}
