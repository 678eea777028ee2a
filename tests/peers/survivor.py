"""A rank that trains until it is killed, or to the target step; test_faults.py kills it.

Arguments: a folder, the consistency, the seed of the order of the examples, and for each rank that
dies its number and the step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from twml_ops import peers

EXAMPLES, FEATURES, EVERY = 1200, 10, 5
EPOCHS, STEPS = 3, 100  # steps of each rank in an epoch
RATE, DECAY_STEPS = np.float32(0.2), 30


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    p = 1 / (1 + np.exp(-x @ np.linspace(-1, 1, FEATURES, dtype=np.float32)))
    return x, (rng.random(EXAMPLES) < p).astype(np.float32)


def loss(weights):
    x, y = data()
    z = x @ weights
    return float(np.mean(np.logaddexp(0, z) - y * z))


def main(folder, consistency, seed, *deaths):
    numbers = [int(d) for d in deaths]
    dies = dict(zip(numbers[::2], numbers[1::2], strict=True))
    group = peers.PeerGroup(timeout=60)
    me = group.original_rank
    shared = peers.SharedVector.create(
        [FEATURES], "float32", "all", group=group, consistency=consistency
    )
    x, y = data()
    for epoch in range(group.epoch, EPOCHS):
        order = np.random.default_rng([int(seed), epoch]).permutation(EXAMPLES)
        for step in range(STEPS):
            if epoch * STEPS + step == dies.get(me) and not group.has_joined:
                os.kill(os.getpid(), signal.SIGKILL)
            i = order[(step * group.size + group.rank) % EXAMPLES]  # of the ranks that remain
            p = 1 / (1 + np.exp(-(x[i] @ shared.value)))
            # It falls, so that the loss does not depend on how many models are averaged.
            rate = RATE / np.float32(1 + (epoch * STEPS + step) / DECAY_STEPS)
            shared.value -= rate * (p - y[i]) * x[i]
            if step % EVERY == EVERY - 1:
                shared.exchange()
        group.end_epoch(epoch + 1, EPOCHS)
    group.close()
    result = {"weights": shared.value.tolist(), "members": group.members, "epoch": group.epoch}
    result |= {"joined": group.has_joined}
    Path(folder, f"{me}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
