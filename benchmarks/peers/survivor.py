"""A rank that trains until it is killed, or to the last epoch; `kills` starts it.

Arguments: a folder for the result, the consistency, the seed of the order of the examples, and for
each rank that dies its number and the example, counted over all ranks and epochs.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path

import numpy as np

from twml_ops import peers
from twml_ops.peers.channel import Consistency

EXAMPLES, FEATURES, EVERY, EPOCHS = 1200, 10, 5, 3
RATE, DECAY_EXAMPLES = 0.05, 120


def data() -> tuple[np.ndarray, np.ndarray]:
    """Examples of a logistic regression.

    Returns:
        (float32 [EXAMPLES, FEATURES], float32 labels [EXAMPLES]).
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    p = 1 / (1 + np.exp(-x @ np.linspace(-1, 1, FEATURES, dtype=np.float32)))
    return x, (rng.random(EXAMPLES) < p).astype(np.float32)


def loss(weights: np.ndarray) -> float:
    """The mean log loss of all examples."""
    x, y = data()
    z = x @ weights
    return float(np.mean(np.logaddexp(0, z) - y * z))


def main(folder: str, consistency: Consistency, seed: str, *deaths: str) -> None:
    """Trains, and writes the weights of this rank."""
    numbers = [int(d) for d in deaths]
    dies = dict(zip(numbers[::2], numbers[1::2], strict=True))
    group = peers.PeerGroup(timeout=60)
    me = group.original_rank
    death = math.inf if group.has_joined else dies.get(me, math.inf)
    shared = peers.SharedVector.create([FEATURES], group=group, consistency=consistency)
    x, y = data()
    for epoch in range(group.epoch, EPOCHS):
        seen = epoch * EXAMPLES  # by all ranks
        order = np.random.default_rng([int(seed), epoch]).permutation(EXAMPLES)
        for number, i in enumerate(group.deal(order)):
            if seen >= death:
                os.kill(os.getpid(), signal.SIGKILL)
            # Proportional to the ranks: an average of fewer models then changes as much by an
            # example, and has the same noise.
            rate = np.float32(RATE * group.size / (1 + seen / DECAY_EXAMPLES))
            seen += group.size
            p = 1 / (1 + np.exp(-(x[i] @ shared.value)))
            shared.value -= rate * (p - y[i]) * x[i]
            if number % EVERY == EVERY - 1:
                shared.exchange()
        group.end_epoch(epoch + 1, EPOCHS)
    group.close()
    result = {"weights": shared.value.tolist(), "members": group.members, "epoch": group.epoch}
    result |= {"joined": group.has_joined}
    Path(folder, f"{me}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
