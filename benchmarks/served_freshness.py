"""Measures how long it takes until a served prediction knows an example.

    python -m benchmarks.served_freshness [--rows N] [--every S] [--seconds S] [--json FILE]

A process trains on a stream of Zipf traffic and writes a checkpoint every `--every` seconds, which
is published as a version of a scorer. `twml-ops serve`, a process of its own, looks for versions
every `--poll` seconds. Now and then an example has an id that no other example has. A client asks
the server for the predictions of these ids until they change: the time from the training step on
the example to the first answer that differs is its freshness. No other weight is trained, so
nothing else changes these answers.

"whole" writes and loads all arrays each time, "changed rows" those that changed since the last
whole version. The table also has the bytes of a version, the seconds from the request for a
checkpoint to the version in the folder, the memory of the server that it does not share with its
files, and the latency of the client's requests, which go on while versions are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import machine, served, tables
from twml_ops import layers, optimizers
from twml_ops.checkpoint import CheckpointManager, CheckpointReader, TablePolicy, variables_of
from twml_ops.export import ScorerPublisher
from twml_ops.export.scorer_files import Written

WAYS = ("whole", "changed rows")
OWN_MEMORY = "server's own MB"
BATCH, ENTRIES = 256, 20
MARKER_SECONDS = 0.05  # between two examples whose freshness is measured


class Stream:
    """A model, and examples for it. The first ids are drawn, the last ones are the markers.

    Args:
        rows: the number of rows of the table.
        units: the units of the table.
        markers: ids that one example each has.
    """

    def __init__(self, rows: int, units: int, markers: int) -> None:
        tf.keras.utils.set_random_seed(1)
        self._rng = np.random.default_rng(1)
        ids = tf.keras.Input([None], dtype="int64", ragged=True, name="x_ids")
        hidden = layers.SparseLinear(units, rows + markers, use_bias=False, name="table")(ids)
        # Nothing behind the table is trained: a prediction depends on the rows of its ids alone.
        output = tf.keras.layers.Dense(1, "sigmoid", kernel_initializer="ones", trainable=False)
        self.model = tf.keras.Model(ids, output(hidden))
        self.model.compile(optimizers.Adagrad(0.05), "binary_crossentropy", jit_compile=False)
        self.model.optimizer.build(self.model.trainable_variables)
        probability = np.arange(1, rows + 1) ** -1.05
        self._cumulative = np.cumsum(probability / probability.sum())
        self._order = self._rng.permutation(rows)
        self._last = rows - 1

    def step(self, marker: int | None) -> None:
        """Trains on a batch, in which one example has the id `marker` as well."""
        ranks = np.searchsorted(self._cumulative, self._rng.random(BATCH * ENTRIES))
        ids = self._order[np.minimum(ranks, self._last)]
        splits = np.arange(BATCH + 1) * ENTRIES
        if marker is not None:
            ids = np.append(ids, marker)
            splits[-1] += 1
        labels = (self._rng.random((BATCH, 1)) < 0.5).astype(np.float32)
        self.model.train_on_batch(tf.RaggedTensor.from_row_splits(ids, splits), labels)


class Watcher(threading.Thread):
    """Asks a server for the predictions of markers until they change.

    Args:
        port: of REST.
        first: the first marker; the others follow.

    Attributes:
        found: seconds from training to serving, for each marker that was seen.
        latencies: seconds of each request.
    """

    def __init__(self, port: int, first: int) -> None:
        super().__init__(name="watcher", daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._waiting: dict[int, tuple[float, float]] = {}  # marker -> when, prediction before
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.next = first
        self.found: list[float] = []
        self.latencies: list[float] = []

    def predict(self, markers: list[int]) -> list[float]:
        """The predictions that the server has for single ids now."""
        begin = time.perf_counter()
        body = json.dumps({"instances": [[m] for m in markers]})
        self._connection.request("POST", served.PATH, body)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        self.latencies.append(time.perf_counter() - begin)
        return [p[0] for p in json.loads(answer)["predictions"]]

    def trained(self, marker: int, before: float) -> None:
        """An example with a marker has been trained on now."""
        with self._lock:
            self._waiting[marker] = time.perf_counter(), before

    def run(self) -> None:
        """Asks until `finish` is called."""
        while not self._ended.wait(0.005):
            with self._lock:
                waiting = dict(self._waiting)
            if not waiting:
                continue
            predictions = self.predict(list(waiting))
            now = time.perf_counter()
            for (marker, (when, before)), p in zip(waiting.items(), predictions, strict=True):
                if p != before:
                    self.found.append(now - when)
                    with self._lock:
                        del self._waiting[marker]

    def finish(self) -> None:
        """Waits for the request that is under way."""
        self._ended.set()
        self.join()


def measure(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """The freshness of one way to publish.

    Args:
        way: one of `WAYS`.
        options: the options of the command.

    Returns:
        One line of the table.
    """
    markers = int(options.seconds / MARKER_SECONDS) + 100
    stream = Stream(options.rows, options.units, markers)
    written: list[Written] = []
    seconds: list[float] = []
    started = [time.perf_counter()]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir)))
        publisher = ScorerPublisher(
            stream.model, folder / "scorer", changed_rows=way == "changed rows"
        )

        def publish(checkpoint: CheckpointReader) -> None:
            written.append(publisher.publish(checkpoint))
            seconds.append(time.perf_counter() - started[0])

        policy = TablePolicy("full" if way == "whole" else "consecutive")
        manager = stack.enter_context(
            CheckpointManager(folder / "checkpoints", keep=1, tables=policy, on_written=publish)
        )
        stream.step(None)  # traces the step
        variables = variables_of(stream.model)

        def save(number: int) -> None:
            started[0] = time.perf_counter()
            manager.save(number, variables, {})

        save(0)
        manager.wait()
        server = stack.enter_context(served.serve(folder / "scorer", options.poll))
        watcher = Watcher(server.rest_port, options.rows)
        ids = list(range(options.rows, options.rows + markers))
        before = dict(zip(ids, watcher.predict(ids), strict=True))
        watcher.start()
        begin = last_save = last_marker = time.perf_counter()
        number = steps = 0
        while time.perf_counter() - begin < options.seconds:
            now = time.perf_counter()
            marker = None
            if now - last_marker >= MARKER_SECONDS and ids:
                marker, last_marker = ids.pop(0), now
            stream.step(marker)
            steps += 1
            if marker is not None:
                watcher.trained(marker, before[marker])
            if now - last_save >= options.every and not manager.busy:
                last_save, number = now, number + 1
                save(number)
        memory = own_megabytes(server.pid)
        manager.wait()
        watcher.finish()
    latencies = np.array(watcher.latencies[10:] or [0.0]) * 1e3
    p50, p99 = np.percentile(watcher.found or [np.nan], [50, 99])
    return {
        "way": way,
        "examples": len(watcher.found),
        "versions": len(written) - 1,
        "freshness p50": float(p50),
        "freshness p99": float(p99),
        "MB": statistics.median([w.bytes for w in written[1:]] or [0]) / 1e6,
        "seconds to publish": statistics.median(seconds[1:] or [0.0]),
        OWN_MEMORY: memory,
        "request p50 ms": float(np.percentile(latencies, 50)),
        "request p99 ms": float(np.percentile(latencies, 99)),
        "steps per second": steps / options.seconds,
    }


def own_megabytes(pid: int) -> float:
    """The memory of a process that no file and no other process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"Private_Dirty:\s+(\d+) kB", text)[0]) / 1e3


def markdown(found: dict[str, Any]) -> str:
    """The section of docs/serving.md.

    Args:
        found: what `main` has measured.
    """
    header = [
        *("versions", "freshness p50, s", "p99, s", "MB of a version", "s to publish"),
        *("own memory of the server, MB", "request p50, ms", "p99, ms", "steps/s"),
    ]
    rows = [
        [
            *(each["way"], f"{each['freshness p50']:.2f}", f"{each['freshness p99']:.2f}"),
            *(f"{each['MB']:,.1f}", f"{each['seconds to publish']:.2f}"),
            f"{each[OWN_MEMORY]:,.0f}",
            *(f"{each['request p50 ms']:.1f}", f"{each['request p99 ms']:.1f}"),
            f"{each['steps per second']:,.0f}",
        ]
        for each in found["ways"]
    ]
    return "\n".join(
        [
            f"A table of {found['rows']:,} rows of {found['units']} weights "
            f"({found['rows'] * found['units'] * 4 / 1e6:,.0f} MB), a checkpoint every "
            f"{found['every']:g} s, a look for versions every {found['poll']:g} s:",
            "",
            tables.markdown(header, rows),
            "",
            tables.machine(found["machine"]),
        ]
    )


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 21, help="rows of the table")
    parser.add_argument("--units", type=int, default=16, help="width of the table")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between checkpoints")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between looks")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each training")
    parser.add_argument("--dir", default=".", help="folder for temporary files")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--page", type=Path, help="guide that gets the table")
    options = parser.parse_args()
    lines = []
    for way in WAYS:
        lines.append(measure(way, options))
        print(json.dumps(lines[-1]), flush=True)
    found = {
        "machine": machine.describe(machine.command_line("benchmarks.served_freshness")),
        **{name: getattr(options, name) for name in ("rows", "units", "every", "poll")},
        "ways": lines,
    }
    sections = {"freshness": markdown(found)}
    tables.record(found, options.json, options.page, sections, "benchmarks/served_freshness.py")


if __name__ == "__main__":
    main()
