"""Process that scores requests with tables in files, for benchmarks/scoring_from_files.py."""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tiered_process import enter_group
from benchmarks.workload import Workload
from twml_ops import _core
from twml_ops.core import Scorer

_PR_SET_TIMERSLACK = 29


def main() -> None:
    """Reads the setting, and then the turns, from lines of JSON; writes a line for each."""
    setting = json.loads(sys.stdin.readline())
    # So that a sleep of microseconds does not take 50 more. Threads that are made later inherit it.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    requests = make_requests(setting)
    if setting["budget"]:
        # The memory of what is there already belongs to the group of before.
        (enter_group() / "memory.limit_in_bytes").write_text(str(setting["budget"]))
    scoring = Scoring(setting, requests)
    print(json.dumps(scoring.statistics()), flush=True)
    for line in sys.stdin:
        turn = json.loads(line)
        before = scoring.statistics()
        measured = scoring.open_loop(**turn) if "rate" in turn else scoring.closed_loop(**turn)
        after = scoring.statistics()
        counts = {k: v - before[k] for k, v in after.items() if k not in ("direct", "io_uring")}
        print(json.dumps({**counts, **measured}), flush=True)


def make_requests(setting: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """Requests with Zipf-distributed ids. With lists, a row has one of so many lists of ids.

    Args:
        setting: sizes and skew.
    """
    workload = Workload(
        setting["rows"],
        batch_size=setting["candidates"],
        row_length=setting["row_length"],
        skew=setting["skew"],
    )
    if not setting["lists"]:
        batches = workload.batches(setting["requests"])
        return [
            {"x_ids": b.ids, "x_values": b.values, "x_row_splits": b.row_splits} for b in batches
        ]
    (lists,) = workload.replace(batch_size=setting["lists"]).batches(1)
    chosen = Workload(
        setting["lists"], batch_size=1, row_length=setting["candidates"], skew=setting["skew"]
    ).batches(setting["requests"], seed=2)
    made = []
    for rows in (batch.ids for batch in chosen):
        parts = [slice(lists.row_splits[r], lists.row_splits[r + 1]) for r in rows]
        lengths = [part.stop - part.start for part in parts]
        made.append(
            {
                "x_ids": np.concatenate([lists.ids[part] for part in parts]),
                "x_values": np.concatenate([lists.values[part] for part in parts]),
                "x_row_splits": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            }
        )
    return made


class Scoring:
    """A scorer and callers that send requests to it.

    Args:
        setting: the folder of the model and the options of the scorer.
        requests: the requests, which are sent in order, again and again.
    """

    def __init__(self, setting: dict[str, Any], requests: list[dict[str, np.ndarray]]) -> None:
        # The delay is no option of `Scorer.load`.
        self._scorer = Scorer(_core.NativeScorer(setting["folder"], **setting["options"]))
        self._requests = requests
        self._next = 0
        self._lock = threading.Lock()

    def statistics(self) -> dict[str, Any]:
        """What the scorer has read, and what reached the device."""
        return self._scorer.statistics._asdict() | {"device_bytes": device_bytes()}

    def closed_loop(self, callers: int, seconds: float) -> dict[str, float]:
        """Sends requests as fast as they are answered.

        Args:
            callers: threads that send one request at a time each.
            seconds: how long.

        Returns:
            Requests and CPU seconds.
        """
        begin, cpu = time.perf_counter(), cpu_seconds()
        end = begin + seconds
        done = [0] * callers

        def call(caller: int) -> None:
            while time.perf_counter() < end:
                self._send(self._take())
                done[caller] += 1

        _run(callers, call)
        taken = time.perf_counter() - begin
        return {"requests": sum(done), "seconds": taken, "cpu": cpu_seconds() - cpu}

    def open_loop(self, callers: int, seconds: float, rate: float) -> dict[str, Any]:
        """Sends requests at a fixed rate, whether or not earlier ones have been answered.

        Args:
            callers: threads, the largest number of requests that run at the same time.
            seconds: how long.
            rate: requests per second.

        Returns:
            The latencies in seconds from the time at which a request was due, and the share of
            requests that began more than 1 ms late, because all callers were busy.
        """
        total = int(rate * seconds)
        first = self._take(total)
        begin = time.perf_counter() + 0.01
        latencies = np.zeros(total)
        late = np.zeros(total, bool)
        sent = iter(range(total))
        lock = threading.Lock()

        def call(_: int) -> None:
            while True:
                with lock:
                    i = next(sent, None)
                if i is None:
                    return
                due = begin + i / rate
                wait = due - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                late[i] = time.perf_counter() - due > 1e-3
                self._send(first + i)
                latencies[i] = time.perf_counter() - due

        _run(callers, call)
        percentiles = np.percentile(latencies, [50, 99])
        return {"p50": percentiles[0], "p99": percentiles[1], "late": float(late.mean())}

    def _take(self, number: int = 1) -> int:
        with self._lock:
            first = self._next
            self._next += number
        return first

    def _send(self, i: int) -> None:
        self._scorer.predict(self._requests[i % len(self._requests)], num_threads=1)


def _run(callers: int, call: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=call, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cpu_seconds() -> float:
    """The CPU seconds of this process, those of the kernel included."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def device_bytes() -> int:
    """The bytes that this process has caused to be read from devices."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


if __name__ == "__main__":
    main()
