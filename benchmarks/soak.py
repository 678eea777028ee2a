"""Lets a scorer, a server and a training work for minutes: no wrong answer, and flat memory.

    python -m benchmarks.soak [--minutes N] [--callers N] [--json FILE]

Each of the parts runs for `--minutes`:

- a scorer in this process, with `--callers` threads;
- `twml-ops serve`, with as many callers, half of them over HTTP and half over gRPC;
- a training of a sparse network whose ids are looked up dynamically.

Every second another version replaces the one that is used. All weights of version v are v, so that
the numbers of an answer tell which version each of them is of: an answer that is not of one version
that was there during the request is wrong, and ends the program with status 1. The memory of the
process (RssAnon) is read every second; its slope over the last four fifths of the time is printed
with the standard error of a line through the means of tenths, since neighbouring seconds depend on
one another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine

VERSIONS = 8
ROWS, EXAMPLES = 1000, 16
LENGTHS = np.arange(1, EXAMPLES + 1)  # of the examples of a request
KEPT = 3  # versions in the folder
MB = 1 << 20


def write_versions(folder: Path) -> list[Path]:
    """Writes the versions 1 to `VERSIONS`, whose rows and biases are the number."""
    import tensorflow as tf

    from twml_ops import layers
    from twml_ops.export import to_scorer

    ids = tf.keras.Input([None], dtype="int64", ragged=True, name="x_ids")
    model = tf.keras.Model(ids, layers.SparseLinear(2, ROWS, name="table")(ids))
    found = []
    for version in range(1, VERSIONS + 1):
        model.set_weights([np.full_like(w, version) for w in model.get_weights()])
        found.append(folder / f"made-{version}")
        to_scorer(model, found[-1])
    return found


def version_of(answer: np.ndarray) -> int:
    """The version that all numbers of an answer are of; 0: they are not of one."""
    versions = np.asarray(answer, np.float64).reshape(EXAMPLES, 2) / (LENGTHS[:, None] + 1)
    first = versions.flat[0]
    return int(first) if (versions == first).all() and first == int(first) else 0


def versions_of(first: int, last: int) -> set[int]:
    """The versions that the folders or loads of these numbers have."""
    return {(number - 1) % VERSIONS + 1 for number in range(first, last + 1)}


class Memory(threading.Thread):
    """Reads the memory of a process every second, until `stop`."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._stopped = pid, threading.Event()
        self.values: list[float] = []

    def run(self) -> None:
        """Reads until `stop` is called."""
        while not self._stopped.wait(1):
            self.values.append(anonymous_memory(self._pid))

    def stop(self) -> tuple[float, float, float]:
        """The last MB; the slope in MB a minute and its standard error."""
        self._stopped.set()
        self.join()
        late = np.array(self.values[len(self.values) // 5 :])
        tenths = [part.mean() for part in np.array_split(late, 10) if len(part)]
        if len(tenths) < 3:
            return self.values[-1] if self.values else 0.0, float("nan"), float("nan")
        minutes = np.arange(len(tenths)) * len(late) / len(tenths) / 60
        (slope, _), covariance = np.polyfit(minutes, tenths, 1, cov=True)
        return float(late[-1]), float(slope), float(np.sqrt(covariance[0, 0]))


def anonymous_memory(pid: int) -> float:
    """The MB of a process that are no files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / MB
    raise OSError(f"process {pid} has no memory")


def swap_until(end: float, swap: Callable[[int], None]) -> int:
    """Calls `swap` with the numbers of versions, once a second; returns how often."""
    for count in itertools.count(2):
        if time.monotonic() > end:
            return count - 2
        time.sleep(1)
        swap(count)
    raise AssertionError


class Times:
    """How often calls took how long, in bins that are 2 % wide, so that their memory is flat."""

    SHORTEST, WIDTH, BINS = 1e-7, 0.02, 1200

    def __init__(self) -> None:
        self.counts, self.wrong = [0] * self.BINS, 0

    def add(self, seconds: float, right: bool) -> None:
        """Counts a call."""
        place = int(math.log(max(seconds, self.SHORTEST) / self.SHORTEST) / self.WIDTH)
        self.counts[min(place, self.BINS - 1)] += 1
        self.wrong += not right


def call_until(end: float, call: Callable[[], bool]) -> Times:
    """Calls until a time."""
    times = Times()
    while time.monotonic() < end:
        begin = time.perf_counter()
        right = call()
        times.add(time.perf_counter() - begin, right)
    return times


def line_of(what: str, results: list[Times], swaps: int, memory: Any) -> dict[str, Any]:
    """A line of the table."""
    counts = np.sum([each.counts for each in results], axis=0)
    below = np.cumsum(counts) / counts.sum()
    p50, p99, p999 = (
        1e6 * Times.SHORTEST * math.exp(Times.WIDTH * (np.searchsorted(below, share) + 0.5))
        for share in (0.5, 0.99, 0.999)
    )
    last, slope, error = memory
    return {
        "what": what, "calls": int(counts.sum()), "wrong": sum(t.wrong for t in results),
        "swaps": swaps, "p50 µs": p50, "p99 µs": p99, "p999 µs": p999,
        "MB": last, "MB a minute": slope, "± 1 s.e.": error,
    }  # fmt: skip


def inputs_of(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Ids of a request, and where its examples begin."""
    splits = np.concatenate([[0], np.cumsum(LENGTHS)])
    return {"ids": rng.integers(0, ROWS, splits[-1]), "row_splits": splits}


def scorers(made: list[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Threads that use a scorer which is replaced every second."""
    from twml_ops.core import Scorer

    scorer, newest = Scorer.load(made[0]), [1]
    given = inputs_of(np.random.default_rng(0))

    def swap(number: int) -> None:
        newest[0] = number  # from now on an answer may be of it
        scorer.reload(made[(number - 1) % VERSIONS])

    def call() -> bool:
        before = newest[0]
        answer = scorer.predict(given["ids"], row_splits=given["row_splits"])
        # The version of `before` may not have been loaded yet.
        return version_of(answer) in versions_of(max(1, before - 1), newest[0])

    memory = Memory(os.getpid())
    memory.start()
    end = time.monotonic() + 60 * options.minutes
    with ThreadPoolExecutor(options.callers) as pool:
        calls = [pool.submit(call_until, end, call) for _ in range(options.callers)]
        swaps = swap_until(end, swap)
        results = [c.result() for c in calls]
    return line_of(f"scorer, {options.callers} threads", results, swaps, memory.stop())


def server(made: list[Path], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Callers of a server whose version is replaced every second."""
    from benchmarks import served

    root = folder / "scorer"
    root.mkdir()
    newest = [0]  # the number of the newest version in the folder

    def swap(number: int) -> None:
        shutil.copytree(made[(number - 1) % VERSIONS], folder / "part")
        newest[0] = number
        os.rename(folder / "part", root / str(number))
        if number > KEPT:
            shutil.rmtree(root / str(number - KEPT))

    swap(1)
    given = inputs_of(np.random.default_rng(0))
    splits = given["row_splits"]
    instances = [given["ids"][a:b].tolist() for a, b in itertools.pairwise(splits)]

    def caller(served_by: Any, api: str) -> Callable[[], bool]:
        call = served_by.caller(api)
        if api == "REST":
            body = json.dumps({"instances": instances}).encode()
        else:
            body = served.encode(api, {"x_ids": given["ids"], "x_row_splits": splits})

        def ask() -> bool:
            before = newest[0]
            answer = call(body)
            if api == "REST":
                numbers = np.array(json.loads(answer)["predictions"])
            else:
                numbers = served.decode(api, answer)
            # The server may be two looks for versions behind the folder.
            return version_of(numbers) in versions_of(max(1, before - 3), newest[0])

        return ask

    with served.serve(root, poll=0.2) as running:
        memory = Memory(running.pid)
        memory.start()
        end = time.monotonic() + 60 * options.minutes
        with ThreadPoolExecutor(options.callers) as pool:
            calls = [
                pool.submit(call_until, end, caller(running, ("REST", "gRPC")[i % 2]))
                for i in range(options.callers)
            ]
            swaps = swap_until(end, swap)
            results = [c.result() for c in calls]
        found = memory.stop()
    return line_of(f"server, {options.callers} callers", results, swaps, found)


def training(options: argparse.Namespace) -> dict[str, Any]:
    """A training whose ids are others all the time."""
    import tensorflow as tf

    from twml_ops import layers, optimizers

    inputs = [tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32")]
    hidden = layers.DynamicSparseLinear(16, 20_000, activation="relu")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(optimizers.Adagrad(0.05), "binary_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    splits = np.arange(0, 256 * 20 + 1, 20)

    def call() -> bool:
        ids = rng.zipf(1.2, splits[-1]) % (1 << 40)
        values = rng.uniform(0.5, 2, splits[-1]).astype(np.float32)
        x = tuple(tf.RaggedTensor.from_row_splits(v, splits) for v in (ids, values))
        loss = model.train_on_batch(x, rng.integers(0, 2, (256, 1)).astype(np.float32))
        return bool(np.isfinite(loss))

    call()
    memory = Memory(os.getpid())
    memory.start()
    results = [call_until(time.monotonic() + 60 * options.minutes, call)]
    return line_of("training, batches of 256", results, 0, memory.stop())


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        made = write_versions(Path(name))
        lines = [scorers(made, options), server(made, Path(name), options), training(options)]
    for line in lines:
        print("  ".join(f"{k}: {v:.4g}" if isinstance(v, float) else f"{k}: {v}"
                        for k, v in line.items()))  # fmt: skip
    if options.json is not None:
        facts = machine.describe(machine.command_line("benchmarks.soak"))
        options.json.write_text(json.dumps({**facts, "lines": lines}, indent=2))
    return int(any(line["wrong"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
