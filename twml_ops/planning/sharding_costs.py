"""What each way to divide one table over servers needs on each of them (see docs/plan.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twml_ops.planning.cpu_costs import CpuCosts, StepParts
from twml_ops.planning.job import FLOAT_BYTES, ClusterResources, Job, Table
from twml_ops.planning.sharding_plan import REPLICATED, TABLE, grid
from twml_ops.planning.traffic import ROW_ID_BYTES, entries_bytes

_EQUAL = 1e-4  # relative difference of servers up to which the order of parts does not matter


@dataclass(frozen=True)
class Placed:
    """One way to divide a table, with the servers of its parts.

    Attributes:
        way: One of `WAYS`.
        first: The server of the first part; part i is on server (first + i) modulo the servers.
        seconds: For each server, what the table adds to a step that waits for this server alone:
            the CPU time and the transfers of the server and of a worker.
        bytes: For each server, bytes of its part of the table with the optimizer's slots.
    """

    way: str
    first: int
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]


@dataclass(frozen=True)
class _Part:
    """Shares of a table's entries, examples, rows and columns that one server has."""

    entries: float
    examples: float
    rows: float
    columns: float


def placements(
    table: Table, job: Job, cluster: ClusterResources, costs: CpuCosts, ways: Sequence[str]
) -> list[Placed]:
    """Lists the ways to divide a table, and for each the servers where it can start.

    Args:
        table: The table.
        job: The model and its batches.
        cluster: The hosts.
        costs: What the parts of a step cost.
        ways: Which of `WAYS` to list. By row or by both needs at least as many rows as parts of
            them, by column or by both a multiple of the parts of columns. With one server only
            "table" and "replicated" are possible, and "replicated" if the table has at most as many
            rows as a batch has examples, so that its values are no more than its product.

    Returns:
        The placements. Ways with equal parts on all servers (to 0.01 %) are listed once.

    Raises:
        ValueError: There are more servers than the workers that run them.
    """
    if cluster.servers_per_host > 1:
        raise ValueError(
            f"servers in workers must be at most one for each of the {cluster.workers} workers, "
            f"got {cluster.servers}"
        )
    found = []
    for way in ways:
        if way == REPLICATED:
            if table.input_dim <= job.batch:
                found.append(_on_workers(table, job, cluster, costs))
            continue
        parts, row_parts = _parts(way, table, cluster.servers)
        if not parts:
            continue
        seconds, stored = _loads(parts, row_parts, table, job, cluster, costs)
        symmetric = all(max(x) - min(x) <= _EQUAL * max(x) for x in (seconds, stored))
        for first in range(1 if symmetric else cluster.servers):
            found.append(Placed(way, first, _turned(seconds, first), _turned(stored, first)))
    return found


def _parts(way: str, table: Table, servers: int) -> tuple[list[_Part], int]:
    """The parts by server, and into how many parts the rows are divided; none if impossible."""
    if way == TABLE:
        return [_Part(1, 1, 1, 1)] + [_Part(0, 0, 0, 0)] * (servers - 1), 1
    if servers == 1:
        return [], 0
    try:
        row_parts, groups = grid(way, servers)
    except ValueError:
        return [], 0
    if table.units % groups or table.input_dim < row_parts:
        return [], 0
    shares = [_entry_share(table, i, row_parts) for i in range(row_parts)]
    return [_Part(e, 1, 1 / row_parts, 1 / groups) for _ in range(groups) for e in shares], (
        row_parts
    )


def _entry_share(table: Table, part: int, parts: int) -> float:
    """The share of the entries of rows p, p + P, p + 2 P, ..., of which the first are hot."""
    hot = len(range(part, table.hot_rows, parts))
    cold = len(range(part, table.input_dim, parts)) - hot
    if table.hot_rows == table.input_dim:
        return hot / table.hot_rows
    share = table.hot_share * hot / table.hot_rows if table.hot_rows else 0.0
    return share + (1 - table.hot_share) * cold / (table.input_dim - table.hot_rows)


def _on_workers(table: Table, job: Job, cluster: ClusterResources, costs: CpuCosts) -> Placed:
    """The way whose products each worker computes with its own copy of the table.

    Several workers get the values in each step and send the gradients of rows, as of dense weights.
    Which server has the values is not known, so that each has its share of them.
    On a host that is a worker and a server, the memory has both its share and the worker's copy.
    """
    entries, rows, units = table.ids(job.batch), table.rows(job.batch), table.units
    shared, remote = cluster.workers > 1, cluster.remote_share
    own = StepParts(
        table=1,
        entry=entries,
        activation=job.batch * table.sent,
        product=entries * units,
        weight=0 if shared else rows * units,
        row=0 if shared else rows,
    )
    seconds, stored = own.times(costs.alone).elapsed(cluster.cores), 0.0
    if shared:
        update = StepParts(weight=rows * units, row=rows).times(costs.server).elapsed(cluster.cores)
        of_servers = cluster.workers * (update + remote * table.bytes / cluster.egress)
        sent = remote * rows * (units * FLOAT_BYTES + ROW_ID_BYTES)
        seconds += sent / cluster.egress + of_servers / cluster.servers
        stored = table.bytes * (1 + job.slots) / cluster.servers
    if cluster.servers_in_workers:
        stored += table.bytes * (1 if shared else 1 + job.slots)
    return Placed(REPLICATED, 0, (seconds,) * cluster.servers, (stored,) * cluster.servers)


def _loads(
    parts: Sequence[_Part],
    row_parts: int,
    table: Table,
    job: Job,
    cluster: ClusterResources,
    costs: CpuCosts,
) -> tuple[list[float], list[float]]:
    """The seconds of a step and the bytes of memory by server."""
    entries, rows, units = table.ids(job.batch), table.rows(job.batch), table.units
    message = entries_bytes(table, job, row_parts) * row_parts
    numbers = [job.batch * p.examples * table.sent * p.columns for p in parts]
    sent = [
        message * p.entries + job.bytes_of_gradients(n, job.batch * p.examples)
        for p, n in zip(parts, numbers, strict=True)
    ]
    shards = sum(part.columns > 0 for part in parts)
    worker = StepParts(
        table=1,
        shard=shards,
        entry=entries,
        activation=sum(numbers),
        row=rows,
        output=job.batch * table.sent,
    ).times(costs.worker)
    seconds, stored = [], []
    for part, number, leaving in zip(parts, numbers, _leaving(sent, cluster), strict=True):
        work = StepParts(
            table=1.0 if part.columns else 0.0,
            entry=entries * part.entries,
            activation=number,
            product=entries * part.entries * units * part.columns,
            weight=rows * part.rows * units * part.columns,
            row=rows * part.rows,
        )
        cpu = work.times(costs.server).elapsed(cluster.cores)
        products = job.bytes_of_products(number, job.batch * part.examples)
        of_worker = worker.elapsed(cluster.cores) + leaving / cluster.egress
        arriving = cluster.remote_share * products / cluster.egress
        seconds.append(of_worker + cluster.workers * (cpu + arriving))
        stored.append(table.bytes * (1 + job.slots) * part.rows * part.columns)
    return seconds, stored


def _leaving(sent: Sequence[float], cluster: ClusterResources) -> list[float]:
    """For each server, the bytes that leave the host of a worker which waits for this server.

    If servers are in workers, this is the mean of the workers on other hosts. A worker has what it
    sends to its own server in its process.
    """
    total = sum(sent)
    if not cluster.servers_in_workers:
        return [total] * len(sent)
    if cluster.workers == 1:
        return [0.0] * len(sent)
    return [total - (total - of_server) / (cluster.workers - 1) for of_server in sent]


def _turned(values: Sequence[float], first: int) -> tuple[float, ...]:
    return tuple(values[(i - first) % len(values)] for i in range(len(values)))
