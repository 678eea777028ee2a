"""A session: servers and workers on a network that run the steps of a strategy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import steal_time
from benchmarks.distributed.network import Network
from benchmarks.distributed.process import HostProcess, run_module
from benchmarks.timing import Turns
from benchmarks.workload import Workload

PORT = 2222
START_SECONDS = 120.0
STEP_SECONDS = 240.0  # timeout of a step, including the tracing of its function
WARM_UP_ROUNDS = 2
TURNS = 4  # in a measurement, of several rounds each
LOCKSTEP = ("standard parameter server", "row lookup")  # the session keeps their workers in step
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
# Without these settings, strategies that send tables would spend half of their time in page faults.
# malloc keeps freed memory or, if the table is too large for that, uses huge pages.
KEEP_MEMORY = (
    f"glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**36}"
)
HUGE_PAGES = "glibc.malloc.hugetlb=1"
KEEP_MEMORY_BELOW = 2**30  # bytes of the table


@dataclass(frozen=True)
class Topology:
    """Numbers of servers and workers; each has its own host."""

    servers: int
    workers: int

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts: "ps0", ..., "wk0", ..."""
        return [f"ps{i}" for i in range(self.servers)] + [f"wk{i}" for i in range(self.workers)]


@dataclass(frozen=True)
class Measured:
    """Measured rounds of a strategy; in a round every worker makes one step.

    Attributes:
        turns: turns of several rounds each, with the seconds per round.
        rounds: number of rounds.
        total: bytes that each host has sent in all rounds.
    """

    turns: Turns
    rounds: int
    total: dict[str, int]

    def __add__(self, other: Measured) -> Measured:
        total = {host: n + other.total[host] for host, n in self.total.items()}
        return Measured(self.turns + other.turns, self.rounds + other.rounds, total)

    @property
    def seconds(self) -> float:
        """Seconds per round, the median of the turns that count."""
        return self.turns.timing().median

    @property
    def sent(self) -> dict[str, float]:
        """Bytes per round that each host has sent."""
        return {host: n / self.rounds for host, n in self.total.items()}


class Session:
    """Running processes on the hosts; `session` creates it."""

    def __init__(
        self, network: Network, servers: list[HostProcess], workers: list[HostProcess]
    ) -> None:
        self.network, self._servers, self._workers = network, servers, workers
        self._addresses = {
            kind: [f"{network.address(p.host)}:{PORT}" for p in processes]
            for kind, processes in (("servers", servers), ("workers", workers))
        }
        self._built = 0
        self._lockstep = True

    def connect(self) -> None:
        """Starts TensorFlow's servers, and sends the addresses to the workers."""
        servers = self._addresses["servers"]
        _all(self._servers, [{"servers": servers, "index": i} for i in range(len(servers))])
        join = {"do": "join", **self._addresses}
        _all(self._workers, [{**join, "index": i} for i in range(len(self._workers))])

    def build(self, strategy: str, workload: Workload) -> dict[str, Any]:
        """Builds a strategy and runs warm-up rounds; see `Worker.build`.

        Args:
            strategy: its name.
            workload: sizes of the table and the batches.

        Returns:
            The mean numbers of `entries` and `unique` ids of a batch, and the first `losses` of
            worker 0.
        """
        self._built += 1
        name = f"table{self._built}"
        message = {"do": "build", "strategy": strategy, "workload": asdict(workload), "name": name}
        about = _all(self._workers, [message] * len(self._workers))
        self._lockstep = strategy in LOCKSTEP
        losses = [self._round(1)[0]["losses"][0] for _ in range(WARM_UP_ROUNDS)]
        mean = {k: sum(a[k] for a in about) / len(about) for k in ("entries", "unique")}
        return {**mean, "losses": losses}

    def measure(self, seconds: float) -> Measured:
        """Runs rounds for about `seconds`, and at least one.

        Turns with steal time do not count; see `benchmarks.steal_time`.
        """
        turns = Turns()
        rounds, rounds_per_turn = 0, 1
        before = self.network.sent()
        start, counting, used = time.perf_counter(), 0.0, 0.0
        while rounds == 0 or (counting < seconds and used < steal_time.MAX_TURN_FACTOR * seconds):
            monitor = steal_time.StealTimeMonitor()
            elapsed = max(a["seconds"] for a in self._round(rounds_per_turn))
            undisturbed = monitor.undisturbed()
            turns.add([elapsed / rounds_per_turn], undisturbed)
            rounds += rounds_per_turn
            counting += undisturbed * elapsed
            used = time.perf_counter() - start
            if len(self._workers) == 1 or not self._lockstep:
                seconds_per_round = elapsed / rounds_per_turn
                rounds_per_turn = max(1, min(200, int(seconds / TURNS / seconds_per_round)))
        after = self.network.sent()
        return Measured(turns, rounds, {host: after[host] - before[host] for host in after})

    def drop(self) -> None:
        """Frees the variables that `build` created."""
        for process in self._workers:
            process.request({"do": "drop"}, STEP_SECONDS)

    def _round(self, count: int) -> list[dict[str, Any]]:
        return _all(self._workers, [{"do": "steps", "count": count}] * len(self._workers))


@contextlib.contextmanager
def session(topology: Topology, table_bytes: int) -> Iterator[Session]:
    """Context manager: starts processes on their own hosts, and removes both at the end.

    Args:
        topology: numbers of servers and workers.
        table_bytes: size of the table, which decides the settings of malloc.
    """
    tunables = KEEP_MEMORY if table_bytes < KEEP_MEMORY_BELOW else HUGE_PAGES
    environment = {**ENVIRONMENT, "GLIBC_TUNABLES": tunables}
    processes: list[HostProcess] = []
    with Network(topology.hosts) as network:
        try:
            for host in topology.hosts:
                module = "server" if host.startswith("ps") else "worker"
                name = f"benchmarks.distributed.{module}"
                processes.append(run_module(network, host, name, environment))
            hosts = Session(network, processes[: topology.servers], processes[topology.servers :])
            hosts.connect()
            yield hosts
        finally:
            for process in processes:
                process.kill()


def _all(processes: Sequence[HostProcess], messages: Sequence[dict[str, Any]]) -> list[Any]:
    """Sends one message to each process, then waits for all answers."""
    for process, message in zip(processes, messages, strict=True):
        process.send(message)
    return [process.receive(STEP_SECONDS) for process in processes]
