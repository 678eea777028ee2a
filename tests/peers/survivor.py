"""A rank that trains until it is killed, or to the target step; test_faults.py kills it.

Arguments: a folder, the number of steps, and for each rank that dies its number and the step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from twml_ops import peers

EXAMPLES, FEATURES, EVERY = 600, 10, 5


def data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    p = 1 / (1 + np.exp(-x @ np.linspace(-1, 1, FEATURES, dtype=np.float32)))
    return x, (rng.random(EXAMPLES) < p).astype(np.float32)


def loss(weights):
    x, y = data()
    z = x @ weights
    return float(np.mean(np.logaddexp(0, z) - y * z))


def main(folder, steps, consistency, *deaths):
    numbers = [int(d) for d in deaths]
    dies = dict(zip(numbers[::2], numbers[1::2], strict=True))
    group = peers.PeerGroup(timeout=60)
    me = group.original_rank
    shared = peers.SharedVector.create(
        [FEATURES], "float32", "all", group=group, consistency=consistency
    )
    x, y = data()
    for step in range(int(steps)):
        if step == dies.get(me):
            os.kill(os.getpid(), signal.SIGKILL)
        # The examples of the dead are divided among the others.
        i = (step * group.size + group.rank) % EXAMPLES
        p = 1 / (1 + np.exp(-(x[i] @ shared.value)))
        shared.value -= np.float32(0.05) * (p - y[i]) * x[i]
        if step % EVERY:
            continue
        try:
            shared.scatter()
            shared.barrier()
            shared.gather()
        except peers.PeerFailure:
            group.survive()
    group.close()
    result = {"loss": loss(shared.value), "members": group.members, "steps": int(steps)}
    Path(folder, f"{me}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
