"""Process that scores requests with tables in files, for benchmarks/scoring_from_files.py."""

from __future__ import annotations

import ctypes
import itertools
import json
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tiered_process import enter_group
from twml_ops import _core
from twml_ops.core import Scorer

_PR_SET_TIMERSLACK = 29


def main() -> None:
    """Reads the setting, and then the turns, from lines of JSON; writes a line for each."""
    setting = json.loads(sys.stdin.readline())
    # So that a sleep of microseconds does not take 50 more. Threads that are made later inherit it.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    traffic = Traffic(setting)
    traffic.block(0)  # its memory is reused by later blocks
    if setting["budget"]:
        # The memory of what is there already belongs to the group of before.
        (enter_group() / "memory.limit_in_bytes").write_text(str(setting["budget"]))
    scoring = Scoring(setting, traffic)
    print(json.dumps(scoring.statistics()), flush=True)
    for line in sys.stdin:
        turn = json.loads(line)
        before = scoring.statistics()
        measured = scoring.open_loop(**turn) if "rate" in turn else scoring.closed_loop(**turn)
        after = scoring.statistics()
        counts = {k: v - before[k] for k, v in after.items() if k not in ("direct", "io_uring")}
        print(json.dumps({**counts, **measured}), flush=True)


class Traffic:
    """Requests with Zipf-distributed ids, which are made when they are needed.

    A rank is the whole part of a number whose density is proportional to x^-skew, in [1, N + 1).
    With lists, each row has one of so many lists of ids, whose ranks are such numbers.

    Args:
        setting: sizes and skew.
    """

    BLOCK = 32  # requests that are made together

    def __init__(self, setting: dict[str, Any]) -> None:
        self._setting = setting
        self._ids = np.random.default_rng(0).permutation(setting["rows"])
        self._lists = None
        if setting["lists"]:
            self._lists = self._rows(np.random.default_rng(1), setting["lists"])

    def block(self, number: int) -> list[dict[str, np.ndarray]]:
        """The requests of a block, which depend on its number alone."""
        rng = np.random.default_rng([2, number])
        rows = self._setting["candidates"]
        if self._lists is None:
            ids, values, splits = self._rows(rng, self.BLOCK * rows)
        else:
            all_ids, all_values, all_splits = self._lists
            chosen = self._ranks(rng, len(all_splits) - 1, self.BLOCK * rows)
            lengths = all_splits[chosen + 1] - all_splits[chosen]
            splits = np.concatenate([[0], np.cumsum(lengths)])
            entries = np.arange(splits[-1]) + np.repeat(all_splits[chosen] - splits[:-1], lengths)
            ids, values = all_ids[entries], all_values[entries]
        made = []
        for r in range(0, self.BLOCK * rows, rows):
            part = slice(splits[r], splits[r + rows])
            own = splits[r : r + rows + 1] - splits[r]
            made.append({"x_ids": ids[part], "x_values": values[part], "x_row_splits": own})
        return made

    def _rows(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, ...]:
        """Ids, values and row splits of rows of random lengths."""
        mean = self._setting["row_length"]
        lengths = rng.integers((mean + 1) // 2, mean + mean // 2 + 1, rows)
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids = self._ids[self._ranks(rng, len(self._ids), splits[-1])]
        return ids, rng.uniform(0.5, 1.5, splits[-1]).astype(np.float32), splits

    def _ranks(self, rng: np.random.Generator, number: int, count: int) -> np.ndarray:
        u, power = rng.random(count), 1 - self._setting["skew"]
        end = float(number + 1)
        x = end**u if power == 0 else (1 + u * (end**power - 1)) ** (1 / power)
        return np.clip(x.astype(np.int64) - 1, 0, number - 1)


class Scoring:
    """A scorer and callers that send requests to it.

    Args:
        setting: the folder of the model and the options of the scorer.
        traffic: the requests.
    """

    def __init__(self, setting: dict[str, Any], traffic: Traffic) -> None:
        # The delay is no option of `Scorer.load`.
        self._scorer = Scorer(_core.NativeScorer(setting["folder"], **setting["options"]))
        self._traffic = traffic
        self._blocks = itertools.count()
        self._requests: deque[dict[str, np.ndarray]] = deque()
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
                self._send()
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
                self._send()
                latencies[i] = time.perf_counter() - due

        _run(callers, call)
        percentiles = np.percentile(latencies, [50, 99])
        return {"p50": percentiles[0], "p99": percentiles[1], "late": float(late.mean())}

    def _send(self) -> None:
        with self._lock:
            if not self._requests:
                self._requests.extend(self._traffic.block(next(self._blocks)))
            request = self._requests.popleft()
        self._scorer.predict(request, num_threads=1)


def _run(callers: int, call: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=call, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cpu_seconds() -> float:
    """The CPU seconds of this process, including its seconds in the kernel."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def device_bytes() -> int:
    """The bytes that this process has caused to be read from devices."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


if __name__ == "__main__":
    main()
