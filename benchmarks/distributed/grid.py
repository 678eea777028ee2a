"""What is measured: strategies on settings under caps, each beside what the plan predicts."""

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
AHEAD = ", pipelined"  # the next batch's products are asked for while this one is worked on
NETWORKED = (STANDARD, LOOKUP, BY_ROW, BY_COLUMN)
PIPELINED = (BY_ROW + AHEAD, BY_COLUMN + AHEAD)
MB = 1e6
# Memory that the standard parameter server needs on one machine: the table, and for each worker so
# many copies of the blocks that travel at once; see stock.standard.
COPIES = 8
ALTERNATIONS = 3  # of a strategy's caps
TRANSPORT_ROWS = 2**17  # that a host sends another to see how fast its software is


@dataclass(frozen=True)
class Setting:
    """A size of the table, a number of hosts, and caps in MB/s.

    Attributes:
        power: the table has 2^power rows.
        servers: S.
        workers: W.
        caps: of each host's egress.
        strategies: that are measured.
        units: columns of the table; 0: the workload's.
    """

    power: int
    servers: int
    workers: int
    caps: tuple[float, ...]
    strategies: tuple[str, ...]
    units: int = 0

    @property
    def name(self) -> str:
        """`2^19 rows, 2 servers, 1 worker`."""
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
    """Measures every cell, and puts each into `found` as soon as it is there.

    `found["cells"][setting][strategy]` is a dict from the cap in MB/s to a cell; see `_cell`.
    `found["failed"]` says why there is none, `found["transport"]` how many bytes a second a host
    sends where no cap limits it.

    Args:
        seconds: for each cell, in three parts, and at least a round in each.
        quick: tiny sizes.
        only: a part of "setting: strategy" of what is to be measured; "": everything.
        log: gets a line for each step.
        found: what there is already; cells measured now replace those.

    Raises:
        NetworkError: there can be no network here; the message says why.
    """
    why = unavailable()
    if why is not None:
        raise NetworkError(why)
    workload = QUICK if quick else WORKLOAD
    found["workload"] = asdict(workload)
    cells, failed = found.setdefault("cells", {}), found.setdefault("failed", {})
    with _ended_by_signals() as go_on:
        wanted = [
            (name, setting, strategy)
            for setting in (QUICK_SETTINGS if quick else SETTINGS)
            for strategy in setting.strategies
            if only in (name := f"{setting.name}: {strategy}")
        ]
        if wanted:
            found["transport"] = _transport(workload, seconds, log)
        for name, setting, strategy in wanted:
            go_on()
            failed.pop(name, None)
            try:
                of = _measure(setting, strategy, workload, seconds, found["transport"], log)
                cells.setdefault(setting.name, {})[strategy] = of
            except HostError as e:
                failed[name] = str(e).splitlines()[0]
                log(f"{name} failed: {e}")


def _transport(workload: Workload, seconds: float, log: Log) -> float:
    """Bytes a second that one host sends another without a cap."""
    log("transport: starting")
    rows = min(TRANSPORT_ROWS, workload.input_dim)
    workload = workload.with_(input_dim=rows, active_ids=rows)
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
    workload = workload.with_(input_dim=2**setting.power, units=setting.units or workload.units)
    table = 2**setting.power * workload.units * 4
    blocks = min(table, setting.servers * BLOCK_ROWS * workload.units * 4)
    needed, free = table + COPIES * blocks * setting.workers, _available()
    if strategy == STANDARD and needed > free:
        raise HostError(f"needs {needed / 1e9:.0f} GB of free memory, there are {free / 1e9:.0f}")
    log(f"{name}: starting")
    servers = 0 if strategy in (SINGLE, REDUCE) else setting.servers
    with session(Topology(servers, setting.workers), table) as hosts:
        about = hosts.build(strategy, workload)
        caps = setting.caps if strategy != SINGLE else setting.caps[:1]
        found = _under_caps(hosts, caps, seconds)
    for cap, measured in found.items():
        at = "without a cap" if cap is None else f"at {cap:g} MB/s"
        log(f"{name}: {setting.workers / measured.seconds:.3g} steps/s {at}")
    return {
        f"{cap:g}": _cell(
            setting, strategy, cap, workload, about, found[None], found[cap], transport
        )
        for cap in caps
    }


def _under_caps(
    hosts: Session, caps: Sequence[float], seconds: float
) -> dict[float | None, Measured]:
    """Measured under each cap in MB/s, and without (None), where the wire is no limit."""
    found: dict[float | None, Measured] = {}
    for _ in range(ALTERNATIONS):  # so that noise of seconds hits every cap alike
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
        `steps`: batches a second of all workers; `bytes`: sent in a round by all hosts, headers
        included; both also `predicted_...`; `limit`: steps/s if only the wire took time; `free`:
        steps/s without a cap; `rounds`; `disturbed`: whether the hypervisor took time away in all
        turns of a measurement; `losses` of the first two.
    """
    batch = workload.batch_size
    table = Table(2**setting.power, workload.units, about["entries"] / batch, about["unique"])
    cluster = ClusterResources(cap * MB, setting.servers, setting.workers)
    plain, job = strategy.removesuffix(AHEAD), Job((table,), batch)
    overlap = plain != strategy
    # A step without a cap is what no network changes, and what the software takes to send.
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
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """In the block, what would kill this process ends it in good order, so that it cleans up.

    Yields what to call between cells: an exception that comes while Python frees something is lost.
    """
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        go_on()

    def go_on() -> None:
        if came:
            raise SystemExit(128 + came[0])

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, end) for n in numbers}
    try:
        yield go_on
        go_on()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
