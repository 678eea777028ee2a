"""Measures peer-to-peer training: torn reads, and training with a slow rank.

    python -m benchmarks.peers tears --ranks 2 --messages 1000000 --transport tcp
    python -m benchmarks.peers slow --ranks 2 --milliseconds 20

`tears`: all ranks write messages of 0 to 16 KiB as fast as they can, and read at the same time;
every message that a gather returns has a checksum. `slow`: logistic regression, where one rank
sleeps before each exchange; the seconds until the loss of the mean of the fast ranks' models is
reached, for each consistency. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from twml_ops import peers
from twml_ops.peers.launch import run_job

LARGEST = 16 << 10
EVERY, FEATURES, EXAMPLES = 100, 200, 20_000


def tears(group: peers.PeerGroup, args: argparse.Namespace) -> dict[str, object]:
    """Reads and writes flat out until the ranks have gathered enough messages together."""
    channel = peers.Channel(group, "all", LARGEST + 16, "async")
    rng = np.random.default_rng(group.rank)
    bytes_ = rng.integers(0, 256, 2 * LARGEST, np.uint8)
    bad, begin = 0, time.perf_counter()
    while group.all_sum([channel.counts.gathered])[0] < args.messages:
        for _ in range(1000):
            start, size = int(rng.integers(LARGEST)), int(rng.integers(LARGEST))
            data = bytes_[start : start + size]
            channel.scatter([np.array([zlib.crc32(data), size], np.int64).view(np.uint8), data])
            for message in channel.gather():
                crc, size = (int(n) for n in message.data[:16].view(np.int64))
                bad += size != message.data.size - 16 or crc != zlib.crc32(message.data[16:])
    counts = channel.counts
    sums = group.all_sum([counts.scatters, counts.gathered, counts.overwritten, counts.torn, bad])
    names = ("scattered", "gathered", "overwritten", "skipped", "bad")
    seconds = round(time.perf_counter() - begin, 1)
    return {**dict(zip(names, sums.tolist(), strict=True)), "seconds": seconds}


def slow(group: peers.PeerGroup, args: argparse.Namespace) -> dict[str, object]:
    """Trains with each consistency; the last rank sleeps before each exchange."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=FEATURES).astype(np.float32)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    y = (rng.random(EXAMPLES) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)
    x, y = np.array_split(x, group.size)[group.rank], np.array_split(y, group.size)[group.rank]
    held = rng.normal(size=(2000, FEATURES)).astype(np.float32)
    labels = (rng.random(2000) < 1 / (1 + np.exp(-held @ truth))).astype(np.float32)
    found: dict[str, object] = {}
    for consistency in ("bsp", "async", "ssp"):
        shared = peers.SharedVector.create(
            [FEATURES], "float32", "all", group=group, consistency=consistency
        )
        group.all_sum([0])
        begin, training, reached = time.perf_counter(), 0.0, None
        for number in range(args.exchanges):
            for i in range(number * EVERY, (number + 1) * EVERY):
                j = i % len(y)
                p = 1 / (1 + np.exp(-(x[j] @ shared.value)))
                shared.value -= np.float32(args.rate) * (p - y[j]) * x[j]
            if group.rank == group.size - 1:
                time.sleep(args.milliseconds / 1000)
            shared.scatter()
            shared.barrier()
            shared.gather()
            training = time.perf_counter() - begin
            z = held @ shared.value
            loss = float(np.mean(np.logaddexp(0, z) - labels * z))
            begin = time.perf_counter() - training  # without the evaluation
            if reached is None and loss < args.loss:
                reached = round(training, 3)
        shared.channel.finish()
        found[consistency] = {"seconds_to_loss": reached, "loss": round(loss, 4)}
        found[consistency] |= {"seconds": round(training, 3)}  # type: ignore[operator]
        group.all_sum([0])
    return found


PARTS = {"tears": tears, "slow": slow}


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the ranks, or runs one of them."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--transport", choices=("shared", "tcp"), default="shared")
    parser.add_argument("--messages", type=int, default=1_000_000, help="with tears")
    parser.add_argument("--milliseconds", type=float, default=20, help="with slow")
    parser.add_argument("--exchanges", type=int, default=100, help="with slow")
    parser.add_argument("--rate", type=float, default=0.02, help="with slow")
    parser.add_argument("--loss", type=float, default=0.3, help="with slow")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that all may take")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.results is not None:
        group = peers.PeerGroup(timeout=600)
        result = PARTS[args.part](group, args)
        (args.results / f"{group.rank}.json").write_text(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.peers", *words, "--results", folder]
        lines: list[str] = []
        job = run_job(
            *(command, args.ranks, 0, args.transport), show=lines.append, timeout=args.timeout
        )
        if job.status:
            print("\n".join(lines), file=sys.stderr)
            raise SystemExit(job.status)
        print(Path(folder, "0.json").read_text())


if __name__ == "__main__":
    main()
