"""All ranks write messages as fast as they can and read at the same time, with checksums."""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np

from twml_ops import peers

LARGEST = 16 << 10
NAMES = ("scattered", "gathered", "overwritten", "skipped", "bad")


def measure(group: peers.PeerGroup, setting: dict[str, Any]) -> dict[str, Any]:
    """Reads and writes messages of up to 16 KiB until the ranks have gathered `messages` of them.

    Args:
        group: the ranks.
        setting: `messages`.

    Returns:
        `NAMES`, the sums over all ranks, and `seconds`.
    """
    channel = peers.Channel(group, "all", LARGEST + 16, "async")
    rng = np.random.default_rng(group.rank)
    bytes_ = rng.integers(0, 256, 2 * LARGEST, np.uint8)
    bad, begin = 0, time.perf_counter()
    while group.all_sum([channel.counts.gathered])[0] < setting["messages"]:
        for _ in range(1000):
            start, size = int(rng.integers(LARGEST)), int(rng.integers(LARGEST))
            data = bytes_[start : start + size]
            channel.scatter([np.array([zlib.crc32(data), size], np.int64).view(np.uint8), data])
            for message in channel.gather():
                crc, size = (int(n) for n in message.data[:16].view(np.int64))
                bad += size != message.data.size - 16 or crc != zlib.crc32(message.data[16:])
    counts = channel.counts
    sums = group.all_sum([counts.scatters, counts.gathered, counts.overwritten, counts.torn, bad])
    seconds = round(time.perf_counter() - begin, 1)
    return {**dict(zip(NAMES, sums.tolist(), strict=True)), "seconds": seconds}
