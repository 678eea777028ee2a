"""A worker: connects to the servers and runs steps as it is told. Run by `session.Session`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.distributed import talk

BATCHES = 4
Run = Callable[[int], list[float]]  # so many steps -> the losses


class Worker:
    """What this process holds between messages."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] = {}
        self.run: Run | None = None
        self.free: Callable[[], None] = lambda: None

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """One message; what it does is its "do"."""
        return getattr(self, message.pop("do"))(**message)

    def join(self, servers: list[str], workers: list[str], index: int) -> dict[str, Any]:
        """Says who takes part, and which of the workers this is."""
        self.cluster = {"servers": servers, "workers": workers, "index": index}
        return {}

    def build(self, strategy: str, workload: dict[str, Any], name: str) -> dict[str, Any]:
        """Makes the step of a strategy; the first worker makes the variables."""
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
        """Runs so many steps."""
        assert self.run is not None
        start = time.perf_counter()
        losses = self.run(count)
        return {"seconds": time.perf_counter() - start, "losses": losses}

    def drop(self) -> dict[str, Any]:
        """Frees what `build` made."""
        self.free()
        self.run, self.free = None, lambda: None
        return {}


def main() -> None:
    """Answers until the standard input ends."""
    talk.serve(functools.partial(Worker.handle, Worker()))


if __name__ == "__main__":
    main()
