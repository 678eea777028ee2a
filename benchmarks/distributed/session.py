"""Servers and workers on a network, started together and asked for steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import stolen
from benchmarks.distributed.network import Network
from benchmarks.distributed.process import HostProcess
from benchmarks.timing import Turns
from benchmarks.workload import Workload

PORT = 2222
START_SECONDS = 120.0
STEP_SECONDS = 240.0  # the slowest step there may be, building its function included
WARM_UP = 2
TURNS = 4  # of several rounds each, in a measurement
LOCKSTEP = ("standard parameter server", "row lookup")  # whose workers do not wait by themselves
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
# Strategies that move tables would spend half of their time in page faults, which is no fault of
# theirs: freed memory is kept, or where there is not enough for that, pages are huge.
KEEP = f"glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**36}"
HUGE_PAGES = "glibc.malloc.hugetlb=1"
KEEP_BELOW = 2**30  # bytes of the table


@dataclass(frozen=True)
class Topology:
    """How many hosts of which kind."""

    servers: int
    workers: int

    @property
    def hosts(self) -> list[str]:
        """Their names."""
        return [f"ps{i}" for i in range(self.servers)] + [f"wk{i}" for i in range(self.workers)]


@dataclass(frozen=True)
class Measured:
    """Rounds of a strategy: in each, every worker makes one step.

    Attributes:
        turns: of several rounds each; seconds a round.
        rounds: how many.
        total: bytes that each host has sent in all of them.
    """

    turns: Turns
    rounds: int
    total: dict[str, int]

    def __add__(self, other: Measured) -> Measured:
        total = {host: n + other.total[host] for host, n in self.total.items()}
        return Measured(self.turns + other.turns, self.rounds + other.rounds, total)

    @property
    def seconds(self) -> float:
        """A round, the median of the turns that count."""
        return self.turns.timing().median

    @property
    def sent(self) -> dict[str, float]:
        """Bytes a round that each host has sent."""
        return {host: n / self.rounds for host, n in self.total.items()}


class Session:
    """Processes that run; see `session`."""

    def __init__(
        self, network: Network, servers: list[HostProcess], workers: list[HostProcess]
    ) -> None:
        self.network, self._servers, self._workers = network, servers, workers
        self._addresses = {
            kind: [f"{network.address(p.host)}:{PORT}" for p in of]
            for kind, of in (("servers", servers), ("workers", workers))
        }
        self._built = 0
        self._lockstep = True

    def connect(self) -> None:
        """Starts TensorFlow's servers, and tells the workers who there is."""
        servers = self._addresses["servers"]
        _all(self._servers, [{"servers": servers, "index": i} for i in range(len(servers))])
        join = {"do": "join", **self._addresses}
        _all(self._workers, [{**join, "index": i} for i in range(len(self._workers))])

    def build(self, strategy: str, workload: Workload) -> dict[str, Any]:
        """Makes a strategy's step and runs it until it is warm; see `Worker.build`.

        Returns:
            mean `entries` and `unique` ids of a batch, and the first `losses` of worker 0.
        """
        self._built += 1
        name = f"table{self._built}"
        message = {"do": "build", "strategy": strategy, "workload": asdict(workload), "name": name}
        about = _all(self._workers, [message] * len(self._workers))
        self._lockstep = strategy in LOCKSTEP
        losses = [self._round(1)[0]["losses"][0] for _ in range(WARM_UP)]
        mean = {k: sum(a[k] for a in about) / len(about) for k in ("entries", "unique")}
        return {**mean, "losses": losses}

    def measure(self, seconds: float) -> Measured:
        """Runs rounds for about so long, one at least.

        Turns in which the hypervisor took time away do not count; see `benchmarks.stolen`.
        """
        turns = Turns()
        rounds, burst = 0, 1
        before = self.network.sent()
        start, counting, used = time.perf_counter(), 0.0, 0.0
        while rounds == 0 or (counting < seconds and used < stolen.MOST_TURNS * seconds):
            watch = stolen.Watch()
            took = max(a["seconds"] for a in self._round(burst))
            undisturbed = watch.undisturbed()
            turns.add([took / burst], undisturbed)
            rounds += burst
            counting += undisturbed * took
            used = time.perf_counter() - start
            if len(self._workers) == 1 or not self._lockstep:
                burst = max(1, min(200, int(seconds / TURNS / (took / burst))))
        after = self.network.sent()
        return Measured(turns, rounds, {host: after[host] - before[host] for host in after})

    def drop(self) -> None:
        """Frees what `build` made."""
        for process in self._workers:
            process.ask({"do": "drop"}, STEP_SECONDS)

    def _round(self, count: int) -> list[dict[str, Any]]:
        return _all(self._workers, [{"do": "steps", "count": count}] * len(self._workers))


@contextlib.contextmanager
def session(topology: Topology, table_bytes: int) -> Iterator[Session]:
    """Processes on hosts of their own; they and the hosts are gone after the block."""
    tunables = KEEP if table_bytes < KEEP_BELOW else HUGE_PAGES
    environment = {**ENVIRONMENT, "GLIBC_TUNABLES": tunables}
    processes: list[HostProcess] = []
    with Network(topology.hosts) as network:
        try:
            for host in topology.hosts:
                module = "server" if host.startswith("ps") else "worker"
                name = f"benchmarks.distributed.{module}"
                processes.append(HostProcess(network, host, name, environment))
            made = Session(network, processes[: topology.servers], processes[topology.servers :])
            made.connect()
            yield made
        finally:
            for process in processes:
                process.kill()


def _all(processes: Sequence[HostProcess], messages: Sequence[dict[str, Any]]) -> list[Any]:
    """Asks all at once."""
    for process, message in zip(processes, messages, strict=True):
        process.say(message)
    return [process.answer(STEP_SECONDS) for process in processes]
