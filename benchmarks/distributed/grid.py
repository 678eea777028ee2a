"""The cells of the benchmark (setting, strategy, cap), and their measurement and prediction."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.distributed import BLOCK_ROWS
from benchmarks.distributed.network import NetworkError, unavailable
from benchmarks.distributed.process import HostError
from benchmarks.distributed.session import Measured, Session, Topology, session
from benchmarks.kernels import Log
from benchmarks.workload import Workload
from twml_ops.planning import ClusterResources, Compute, Job, Table, predict

SINGLE, REDUCE, STANDARD = "single machine", "all-reduce", "standard parameter server"
LOOKUP, BY_ROW, BY_COLUMN = "row lookup", "hybrid by row", "hybrid by column"
PIPELINED_SUFFIX = ", pipelined"  # `HybridTrainer(pipeline=True)`
NETWORKED = (STANDARD, LOOKUP, BY_ROW, BY_COLUMN)
PIPELINED = (BY_ROW + PIPELINED_SUFFIX, BY_COLUMN + PIPELINED_SUFFIX)
MB = 1e6
# The standard parameter server needs memory for the table, and for each worker this many copies of
# the blocks that are sent at the same time; see stock.standard_parameter_server.
COPIES = 8
ALTERNATIONS = 3  # passes over the caps of a strategy
TRANSPORT_ROWS = 2**17  # rows that one host sends to another to measure the transport


@dataclass(frozen=True)
class Setting:
    """A size of the table, a number of hosts, and the caps and strategies to measure.

    Attributes:
        power: the table has 2^power rows.
        servers: number of servers.
        workers: number of workers.
        caps: limits of the egress of each host, in MB/s.
        strategies: names of the strategies.
        units: columns of the table; 0: the columns of the workload.
    """

    power: int
    servers: int
    workers: int
    caps: tuple[float, ...]
    strategies: tuple[str, ...]
    units: int = 0

    @property
    def name(self) -> str:
        """For example "2^19 rows, 2 servers, 1 worker"."""
        units = f" of {self.units}" if self.units else ""
        return (
            f"2^{self.power} rows{units}, {self.servers} server{'s' * (self.servers != 1)}, "
            f"{self.workers} worker{'s' * (self.workers != 1)}"
        )


SETTINGS = (
    Setting(19, 2, 1, (100, 150, 1000), (SINGLE, *NETWORKED, *PIPELINED)),
    *(Setting(power, 2, 1, (150,), (SINGLE, *NETWORKED, PIPELINED[0])) for power in (20, 21, 22)),
    *(Setting(19, servers, 1, (150,), NETWORKED) for servers in (1, 4)),
    *(Setting(19, servers, 1, (150,), (BY_ROW, BY_COLUMN), 400) for servers in (2, 4)),
    *(Setting(19, 2, workers, (150,), (*NETWORKED, REDUCE)) for workers in (2, 3)),
)
WORKLOAD = Workload(input_dim=2**19, units=128, batch_size=512, row_length=200, active_ids=2**19)
QUICK_SETTINGS = (Setting(10, 1, 1, (10,), (STANDARD, BY_ROW)),)
QUICK = Workload(input_dim=2**10, units=16, batch_size=32, row_length=10, active_ids=2**10)


def measure(
    *, seconds: float, quick: bool = False, only: str = "", log: Log, found: dict[str, Any]
) -> None:
    """Measures every cell, and adds each to `found` immediately.

    `found["cells"][setting][strategy]` maps the cap in MB/s to a cell; see `_cell`.
    `found["failed"]` maps the name of a failed cell to the reason. `found["transport"]` is the rate
    in bytes per second at which a host sends without a cap.

    Args:
        seconds: for each cell, in ALTERNATIONS parts with at least one round each.
        quick: use tiny sizes.
        only: measure cells whose "setting: strategy" contains this text; "" for all.
        log: receives progress messages.
        found: earlier results; the measured cells are replaced.

    Raises:
        NetworkError: network namespaces cannot be created; the message says why.
    """
    reason = unavailable()
    if reason is not None:
        raise NetworkError(reason)
    workload = QUICK if quick else WORKLOAD
    found["workload"] = asdict(workload)
    cells, failed = found.setdefault("cells", {}), found.setdefault("failed", {})
    with signals_as_exits() as check_signals:
        wanted = [
            (name, setting, strategy)
            for setting in (QUICK_SETTINGS if quick else SETTINGS)
            for strategy in setting.strategies
            if only in (name := f"{setting.name}: {strategy}")
        ]
        if wanted:
            found["transport"] = _transport(workload, seconds, log)
        for name, setting, strategy in wanted:
            check_signals()
            failed.pop(name, None)
            try:
                by_cap = _measure(setting, strategy, workload, seconds, found["transport"], log)
                cells.setdefault(setting.name, {})[strategy] = by_cap
            except HostError as e:
                failed[name] = str(e).splitlines()[0]
                log(f"{name} failed: {e}")


def _transport(workload: Workload, seconds: float, log: Log) -> float:
    """Bytes per second that one host sends to another without a cap."""
    log("transport: starting")
    rows = min(TRANSPORT_ROWS, workload.input_dim)
    workload = workload.replace(input_dim=rows, active_ids=rows)
    table = rows * workload.units * 4
    with session(Topology(1, 1), table) as hosts:
        hosts.build("transport", workload)
        found = table / hosts.measure(seconds).seconds
    log(f"a host sends {found / MB:.0f} MB/s without a cap")
    return found


def _measure(
    setting: Setting,
    strategy: str,
    workload: Workload,
    seconds: float,
    transport: float,
    log: Log,
) -> dict[str, Any]:
    name = f"{setting.name}: {strategy}"
    workload = workload.replace(input_dim=2**setting.power, units=setting.units or workload.units)
    table = 2**setting.power * workload.units * 4
    blocks = min(table, setting.servers * BLOCK_ROWS * workload.units * 4)
    needed, free = table + COPIES * blocks * setting.workers, _available()
    if strategy == STANDARD and needed > free:
        raise HostError(f"needs {needed / 1e9:.0f} GB of free memory, got {free / 1e9:.0f}")
    log(f"{name}: starting")
    servers = 0 if strategy in (SINGLE, REDUCE) else setting.servers
    with session(Topology(servers, setting.workers), table) as hosts:
        about = hosts.build(strategy, workload)
        caps = setting.caps if strategy != SINGLE else setting.caps[:1]
        found = under_caps(hosts, caps, seconds)
    for cap, measured in found.items():
        at = "without a cap" if cap is None else f"at {cap:g} MB/s"
        log(f"{name}: {setting.workers / measured.seconds:.3g} steps/s {at}")
    return {
        f"{cap:g}": _cell(
            setting, strategy, cap, workload, about, found[None], found[cap], transport
        )
        for cap in caps
    }


def under_caps(
    hosts: Session, caps: Sequence[float], seconds: float
) -> dict[float | None, Measured]:
    """Measures what is built under each cap and without a cap.

    Args:
        hosts: the hosts, which are left with the last cap.
        caps: MB/s of each host.
        seconds: for each cap, in ALTERNATIONS parts.

    Returns:
        What was measured, by cap; None: without one.
    """
    found: dict[float | None, Measured] = {}
    for _ in range(ALTERNATIONS):  # so that noise that lasts seconds affects all caps
        for cap in (None, *caps):
            hosts.network.cap(cap and cap * MB)
            measured = hosts.measure(seconds / ALTERNATIONS)
            found[cap] = found[cap] + measured if cap in found else measured
    return found


def _cell(
    setting: Setting,
    strategy: str,
    cap: float,
    workload: Workload,
    about: dict[str, Any],
    free: Measured,
    under: Measured,
    transport: float,
) -> dict[str, Any]:
    """Measured and predicted figures of a strategy under a cap.

    Returns:
        `steps`: batches per second of all workers; `bytes`: sent per round by all hosts, including
        headers; `predicted_steps` and `predicted_bytes`: the plan's; `limit`: steps/s if only the
        network took time; `free`: steps/s without a cap; `rounds`: their number;
        `disturbed`: whether all turns had steal time; `losses`: of the first two steps.
    """
    batch = workload.batch_size
    table = Table(2**setting.power, workload.units, about["entries"] / batch, about["unique"])
    cluster = ClusterResources(cap * MB, setting.servers, setting.workers)
    plain, job = strategy.removesuffix(PIPELINED_SUFFIX), Job((table,), batch)
    overlap = plain != strategy
    # A step without a cap takes the time that does not depend on the network, and the time that the
    # software needs to send.
    uncapped = ClusterResources(transport, setting.servers, setting.workers)
    sending = 0.0 if overlap else predict(plain, job, uncapped).seconds
    compute = Compute(dense=max(0.0, free.seconds - sending), transport=transport)
    plan = predict(plain, job, cluster, compute, overlap=overlap)
    return {
        "steps": setting.workers / under.seconds,
        "predicted_steps": plan.steps_per_second,
        "bytes": sum(under.sent.values()),
        "predicted_bytes": plan.wire_bytes(),
        "limit": plan.wire_limit if plan.wire_seconds else None,
        "free": setting.workers / free.seconds,
        "rounds": under.rounds,
        "disturbed": not (free.turns.counting and under.turns.counting),
        "losses": about["losses"],
    }


def _available() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024.0 * int(li.split()[1]) for li in lines if li.startswith("MemAvailable"))


@contextmanager
def signals_as_exits() -> Iterator[Callable[[], None]]:
    """Converts signals in the block to SystemExit, so that the namespaces are removed.

    Yields a function to call between cells, because Python drops exceptions in destructors.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        check_signals()

    def check_signals() -> None:
        if received:
            raise SystemExit(128 + received[0])

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {n: signal.signal(n, handle) for n in numbers}
    try:
        yield check_signals
        check_signals()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
