"""A linear support vector machine on sparse examples with the shape of RCV1.

The step is that of examples/svm.py. The examples are made here: 47,236 features, of which an
example has about 75 with random weights and the norm 1, and labels of a random separating plane of
which 5 % are wrong.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from twml_ops import peers

FEATURES, ENTRIES, TRAIN, HELD_OUT = 47_236, 75, 20_000, 4_000
WRONG = 0.05
RATE, DECAY, PENALTY = 2.0, 4.0, 1e-5  # the best of a few for one rank


@dataclass(frozen=True)
class Data:
    """Examples.

    Attributes:
        ids: [N, ENTRIES], features.
        values: float32 [N, ENTRIES].
        labels: [N], -1 or 1.
    """

    ids: np.ndarray
    values: np.ndarray
    labels: np.ndarray

    def loss(self, weights: np.ndarray) -> float:
        """The mean hinge loss."""
        margins = self.labels * (weights[self.ids] * self.values).sum(1)
        return float(np.maximum(0, 1 - margins).mean())


def make(count: int, seed: int) -> Data:
    """Examples with a separating plane, which is the same for all seeds.

    Args:
        count: their number.
        seed: the seed of the examples.
    """
    rng = np.random.default_rng([1, seed])
    plane = np.random.default_rng(0).normal(size=FEATURES).astype(np.float32)
    share = np.cumsum(1 / (np.arange(FEATURES) + 50.0))
    ids = np.searchsorted(share / share[-1], rng.random((count, ENTRIES)))
    values = rng.exponential(size=ids.shape).astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    labels = np.where((plane[ids] * values).sum(1) > 0, 1, -1)
    return Data(ids, values, np.where(rng.random(count) < WRONG, -labels, labels))


def measure(group: peers.PeerGroup, setting: dict[str, Any]) -> dict[str, Any]:
    """Trains on this rank's share.

    Args:
        group: the ranks.
        setting: `epochs`; `every`, examples between two exchanges; `consistency`; `dataflow`;
            `what`, "weights" or "gradients" as for `PeerAveraging`; `sleep`, seconds that the last
            rank sleeps before each exchange; `examples`, their number.

    Returns:
        After each exchange of this rank: `examples` that it has seen, `seconds`, and `loss` of
        its weights on held-out examples.
    """
    data, test = make(setting.get("examples", TRAIN), 0), make(HELD_OUT, 1)
    shared = peers.SharedVector.create(
        [FEATURES],
        dataflow=setting.get("dataflow", "all"),
        consistency=setting.get("consistency", "bsp"),
        group=group,
    )
    weights, base = shared.value, None
    if setting.get("what") == "gradients":
        weights, base = np.zeros_like(shared.value), np.zeros_like(shared.value)
    sleeps = setting.get("sleep", 0) if group.rank == group.size - 1 else 0
    seen, kept, times = 0, [], []
    group.all_sum([0])
    begin = time.perf_counter()
    for epoch in range(setting["epochs"]):
        order = np.random.default_rng([2, epoch]).permutation(len(data.labels))
        mine = order[group.rank :: group.size][: len(order) // group.size]
        for n, i in enumerate(mine):
            ids, values, label = data.ids[i], data.values[i], data.labels[i]
            margin = label * (weights[ids] @ values)
            rate = RATE / (1 + DECAY * (seen + n) / TRAIN)
            weights *= np.float32(1 - rate * PENALTY)
            if margin < 1:
                weights[ids] += np.float32(rate * label) * values
            if (n + 1) % setting["every"] and n + 1 < len(mine):
                continue
            time.sleep(sleeps)
            if base is not None:
                shared.value[:] = weights - base
            if group.size > 1:
                shared.scatter()
                shared.barrier()
                shared.gather()
            if base is not None:
                base += shared.value
                weights[:] = base
            times.append(time.perf_counter() - begin)
            kept.append((seen + n + 1, weights.copy()))
        seen += len(mine)
    shared.channel.finish()
    return {
        "examples": [examples for examples, _ in kept],
        "seconds": times,
        "loss": [test.loss(w) for _, w in kept],
        "sent_bytes": shared.counts.sent_bytes,
    }


def reached(curve: dict[str, Any], loss: float) -> tuple[int, float] | None:
    """The examples and the seconds of a rank until a loss; None if it was not reached.

    Args:
        curve: the curve of `measure`.
        loss: the target.
    """
    columns = (curve[name] for name in ("examples", "seconds", "loss"))
    for examples, seconds, value in zip(*columns, strict=True):
        if value <= loss:
            return examples, seconds
    return None
