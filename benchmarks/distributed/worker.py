"""A worker: connects to the servers and runs steps on request. `session` starts it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.distributed import json_lines

BATCHES = 4
Run = Callable[[int], list[float]]  # number of steps -> their losses


class Worker:
    """The state of this process between requests."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] = {}
        self.run: Run | None = None
        self.free: Callable[[], None] = lambda: None

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a request; its "do" names the method."""
        return getattr(self, message.pop("do"))(**message)

    def join(self, servers: list[str], workers: list[str], index: int) -> dict[str, Any]:
        """Sets the addresses of the cluster, and the index of this worker."""
        self.cluster = {"servers": servers, "workers": workers, "index": index}
        return {}

    def build(self, strategy: str, workload: dict[str, Any], name: str) -> dict[str, Any]:
        """Builds a strategy; the first worker creates the variables."""
        from benchmarks.distributed import builders
        from benchmarks.workload import Workload

        batches = Workload(**workload).batches(BATCHES, seed=1 + self.cluster["index"])
        self.run, self.free = builders.build(
            strategy, Workload(**workload), batches, name, **self.cluster
        )
        return {
            "entries": sum(len(b.ids) for b in batches) / BATCHES,
            "unique": sum(b.unique for b in batches) / BATCHES,
        }

    def steps(self, count: int) -> dict[str, Any]:
        """Runs `count` steps."""
        assert self.run is not None
        start = time.perf_counter()
        losses = self.run(count)
        return {"seconds": time.perf_counter() - start, "losses": losses}

    def drop(self) -> dict[str, Any]:
        """Frees the variables that `build` created."""
        self.free()
        self.run, self.free = None, lambda: None
        return {}


def main() -> None:
    """Answers requests until the standard input ends."""
    json_lines.serve(functools.partial(Worker.handle, Worker()))


if __name__ == "__main__":
    main()
