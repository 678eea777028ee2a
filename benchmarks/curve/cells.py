"""The cells of the benchmark: trainings, ways to train, and numbers of hosts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.distributed.collective import STRATEGY as ALL_REDUCE
from benchmarks.distributed.stock import LOOKUP, STANDARD

OURS, STOCK = "one host, twml_ops", "one host, stock"
MODES = {"synchronous": "sync", "asynchronous": "async", "Hogwild": "hogwild"}
SYNCHRONOUS, ASYNCHRONOUS, HOGWILD = MODES
STOCK_CLUSTERS = (ALL_REDUCE, LOOKUP, STANDARD)
ONE_HOST = (OURS, STOCK)
AXES = ("row", "column")
SERVERS, WORKERS = (1, 2, 4), (1, 2, 4, 8)
WIRE = 10.0  # Gbit/s of a whole core
SLOW_WIRE = 1.0
USED = 0.85  # of the machine's cores, by all hosts together
TOGETHER = 8  # steps_per_execution


@dataclass(frozen=True)
class Cell:
    """What is measured by one run.

    Attributes:
        training: name of the training; see benchmarks/cluster_cost/trainings.py.
        way: one of `ONE_HOST`, `MODES` or `STOCK_CLUSTERS`.
        servers: number of hosts with a server.
        workers: number of hosts with a worker.
        wire: Gbit/s that a host can send if it has a whole core, and less in proportion.
        axis: partition_axis of the tables.
        inside: whether the first workers run a server each in their own process, and there are no
            other hosts with servers.
        joined: batches of so many workers are one batch of one host.
        exchange_every: steps of a worker between two exchanges with the servers.
        wire_dtype: type in which products and their gradients are sent.
        beside: so many other hosts train the same by themselves at the same time, and share the
            caches of the core.
    """

    training: str
    way: str
    servers: int = 0
    workers: int = 1
    wire: float = WIRE
    axis: str = "auto"
    inside: bool = False
    joined: int = 1
    exchange_every: int = 1
    beside: int = 0
    wire_dtype: str = "float32"

    @property
    def name(self) -> str:
        """For example "flights: synchronous, 4 servers, 8 workers, 10 Gbit/s"."""
        if self.way in ONE_HOST:
            joined = f", {self.joined} batches joined" if self.joined > 1 else ""
            beside = f", beside {self.beside} others" if self.beside else ""
            return f"{self.training}: {self.way}{joined}{beside}"
        axis = "" if self.axis == "auto" else f", by {self.axis}"
        every = f", exchange every {self.exchange_every} steps" * (self.exchange_every > 1)
        sent_as = f", sent as {self.wire_dtype}" * (self.wire_dtype != "float32")
        inside = " in workers" * self.inside
        counts = [
            f"{n} {kind}{'s' * (n != 1)}{place}"
            for n, kind, place in (
                (self.servers, "server", inside),
                (self.workers, "worker", ""),
            )
            if n
        ]
        where = f"{', '.join(counts)}, {self.wire:g} Gbit/s{axis}{every}{sent_as}"
        return f"{self.training}: {self.way}, {where}"

    @property
    def trainers(self) -> int:
        """The number of hosts that train, each with a worker or by itself."""
        return self.workers + self.beside

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, those with servers only first."""
        servers = 0 if self.inside else self.servers
        counts = (servers, "server"), (self.trainers, "worker")
        return [f"{kind}{i}" for n, kind in counts for i in range(n)]

    @property
    def steps_per_execution(self) -> int:
        """Steps of a call. One of the stock layer on the large table takes long enough alone."""
        slow = self.way in STOCK_CLUSTERS or (self.way == STOCK and self.training == "reference")
        return 1 if slow else TOGETHER

    def egress(self, share: float) -> float | None:
        """Bytes per second that a host with a share of a core can send; None without a network."""
        return None if self.way in ONE_HOST else self.wire * 1e9 / 8 * share


def default_share() -> float:
    """The share of a core for each host with which all hosts of the largest cell fit."""
    cores = len(os.sched_getaffinity(0))
    return int(100 * USED * cores / (max(SERVERS) + max(WORKERS))) / 100


def learning_cells() -> list[Cell]:
    """The cells that train on so many batches and are evaluated then."""
    ways = [Cell("flights", way, 4, 8) for way in MODES]
    ways += [Cell("flights", ASYNCHRONOUS, 4, 8, exchange_every=4)]
    return [Cell("flights", OURS), Cell("flights", OURS, joined=8), *ways]


def cells() -> list[Cell]:
    """All cells, the most important ones first."""
    diagonal = ((1, 1), (1, 2), (2, 4), (4, 8))  # servers, workers
    trainings = ("reference", "flights", "criteo")
    others = max(SERVERS) + max(WORKERS) - 1
    found = [Cell(t, way) for t in trainings for way in ONE_HOST]
    found += [Cell(t, OURS, beside=others) for t in trainings]
    found += [
        Cell(t, way, s, w)
        for t in trainings
        for way in MODES
        for s, w in (diagonal if way != HOGWILD else diagonal[-1:])
    ]
    for way in (SYNCHRONOUS, ASYNCHRONOUS):
        found += [Cell("reference", way, 4, 8, axis=axis) for axis in AXES]
        found += [Cell("reference", way, 8, 4, axis="row")]
        found += [Cell("reference", way, 8, 8, axis="row", inside=True)]
        found += [Cell("reference", way, 4, 8, SLOW_WIRE, axis) for axis in ("auto", *AXES)]
    found += [
        Cell(t, ASYNCHRONOUS, s, w, axis=axis, exchange_every=k)
        for t, axis, s, w, k in (
            *(("reference", "row", 4, 8, k) for k in (4, 8)),
            *(("reference", "row", 2, 2, k) for k in (1, 2, 4, 8)),
            *((t, "auto", 4, 8, 4) for t in ("flights", "criteo")),
        )
    ]
    found += [
        Cell("reference", ASYNCHRONOUS, 4, 8, axis="row", exchange_every=k, wire_dtype="bfloat16")
        for k in (1, 8)
    ]
    found += [Cell("reference", ALL_REDUCE, 0, w) for w in (2, 8)]
    found += [Cell("reference", way, 2, 2) for way in (LOOKUP, STANDARD)]
    found += [
        Cell(t, way, s, w) for t in trainings for way in MODES for s in SERVERS for w in WORKERS
    ]
    return list(dict.fromkeys(found))
