"""The messages of a step for each strategy (see docs/plan.md).

The sizes count the contents: ids, counts, values and weights, without the headers of RPC and
TCP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twml_ops.planning.job import FLOAT_BYTES, Job, Table

SINGLE_MACHINE = "single machine"
PARAMETER_SERVER = "standard parameter server"
ROW_LOOKUP = "row lookup"
ALL_REDUCE = "all-reduce"
BY_ROW, BY_COLUMN = "hybrid by row", "hybrid by column"
PEERS = "peers"
WORKER, SERVER = "worker", "server"
ROW_ID_BYTES = 8  # of an id in stock TensorFlow
MESSAGE_BYTES = 48  # of the header of a packed message and the padding of its sections


@dataclass(frozen=True)
class Message:
    """A message that is sent once per step on every link of one kind.

    Attributes:
        what: The contents.
        phase: The messages of a phase are sent at the same time, phases follow one another.
        sender: "worker" or "server".
        receiver: "worker" or "server". Between workers, each sends to the next one in a ring, or as
            a peer to all others.
        bytes: Size on one link, for one worker's batch; between workers, all that one sends.
    """

    what: str
    phase: int
    sender: str
    receiver: str
    bytes: float


def messages(strategy: str, job: Job, servers: int, workers: int) -> list[Message]:
    """Lists the messages of a step in which every worker trains on one batch.

    Args:
        strategy: A key of `STRATEGIES`.
        job: The model and its batches.
        servers: S, the number of servers.
        workers: W, the number of workers.

    Returns:
        The messages that are not empty.

    Raises:
        ValueError: There is no strategy of that name.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}; got {strategy!r}")
    return [m for m in STRATEGIES[strategy](job, servers, workers) if m.bytes > 0]


def _single_machine(job: Job, servers: int, workers: int) -> list[Message]:
    return []


def _parameter_server(job: Job, servers: int, workers: int) -> list[Message]:
    """A worker reads all weights and sends a dense gradient of the same size."""
    share = (job.table_bytes + _dense(job)) / servers
    return [
        Message("weights", 0, SERVER, WORKER, share),
        Message("gradient", 1, WORKER, SERVER, share),
    ]


def _row_lookup(job: Job, servers: int, workers: int) -> list[Message]:
    """A worker reads the distinct rows of its batch and sends their gradient."""
    rows = [(t.rows(job.batch) / servers, t.units) for t in job.tables]
    dense = _dense(job) / servers
    return [
        Message("ids", 0, WORKER, SERVER, sum(r * ROW_ID_BYTES for r, _ in rows)),
        Message("rows", 1, SERVER, WORKER, dense + sum(r * d * FLOAT_BYTES for r, d in rows)),
        Message("slices", 2, WORKER, SERVER, dense + _slices(rows)),
    ]


def _all_reduce(job: Job, servers: int, workers: int) -> list[Message]:
    """Workers in a ring exchange the dense gradient or all slices of a table, what is smaller."""
    others = workers - 1
    total = _dense(job) * 2 * others / workers
    for table in job.tables:
        ring = 2 * others / workers * table.bytes
        gathered = others * _slices([(table.rows(job.batch), table.units)])
        total += min(ring, gathered)
    return [Message("gradients", 0, WORKER, WORKER, total)]


def _peers(job: Job, servers: int, workers: int) -> list[Message]:
    """Every E batches a worker sends its dense weights and changed rows to all others."""
    total = float(_dense(job))
    for table in job.tables:
        rows = table.exchanged_rows(job.batch, job.every)
        id_bytes = _bits(table.input_dim - 1) / 8
        total += MESSAGE_BYTES + rows * (table.units * FLOAT_BYTES + id_bytes)
    return [Message("weights and rows", 0, WORKER, WORKER, total * (workers - 1) / job.every)]


def _by_row(job: Job, servers: int, workers: int) -> list[Message]:
    """A server receives the entries of its rows and returns partial sums [B, D]."""
    entries = sum(entries_bytes(t, job, servers) for t in job.tables)
    return _hybrid(job, entries, sum(t.sent for t in job.tables), servers, workers)


def _by_column(job: Job, servers: int, workers: int) -> list[Message]:
    """Every server receives all entries and returns its columns [B, D / S]."""
    entries = sum(entries_bytes(t, job, 1) for t in job.tables)
    return _hybrid(job, entries, sum(t.sent for t in job.tables) / servers, servers, workers)


def _hybrid(job: Job, entries: float, columns: float, servers: int, workers: int) -> list[Message]:
    numbers, rows = job.batch * columns, job.batch * len(job.tables)
    found = [
        Message("entries", 0, WORKER, SERVER, entries),
        Message("activations", 1, SERVER, WORKER, job.bytes_of_products(numbers, rows)),
        Message("their gradient", 2, WORKER, SERVER, job.bytes_of_gradients(numbers, rows)),
    ]
    if workers > 1:  # a single worker keeps the dense weights
        share = _dense(job) / servers
        found.append(Message("dense weights", 0, SERVER, WORKER, share))
        found.append(Message("dense gradient", 2, WORKER, SERVER, share))
    return found


def entries_bytes(table: Table, job: Job, parts: int) -> float:
    """Returns the size of the message to one of `parts` servers (see cc/core/packed_entries.h).

    Each id takes as many bits as the largest id of the shard. If that is smaller, the gaps between
    distinct ids are sent, and each entry is an index into them. The gaps take as many bits as the
    largest of them, which is assumed to be that of random ids: of U gaps, about 1 + ln(U) times
    their mean. The numbers of entries of the examples take as many bits as the largest of them,
    which is assumed to be twice the mean.

    Args:
        table: The table.
        job: The model and its batches.
        parts: Number of equal parts of the rows.

    Returns:
        Bytes of the message of one worker.
    """
    count, distinct = table.ids(job.batch) / parts, table.rows(job.batch) / parts
    id_bits = _bits((table.input_dim - 1) // parts)
    bits = count * id_bits
    if job.deduplicate and 0 < 2 * distinct <= count:
        largest_gap = table.input_dim / parts / distinct * (1 + math.log(max(distinct, 1)))
        gap_bits = min(_bits(int(largest_gap)), id_bits)
        bits = min(bits, distinct * gap_bits + count * _bits(int(distinct) - 1))
    lengths = job.batch * _bits(int(2 * table.entries / parts))
    return MESSAGE_BYTES + (bits + lengths) / 8 + FLOAT_BYTES * job.values * count


def _bits(largest: int) -> int:
    return max(1, max(largest, 0).bit_length())


def _slices(rows: Sequence[tuple[float, int]]) -> float:
    return sum(r * (d * FLOAT_BYTES + ROW_ID_BYTES) for r, d in rows)


def _dense(job: Job) -> float:
    return FLOAT_BYTES * job.dense


STRATEGIES: dict[str, Callable[[Job, int, int], list[Message]]] = {
    SINGLE_MACHINE: _single_machine,
    PARAMETER_SERVER: _parameter_server,
    ROW_LOOKUP: _row_lookup,
    ALL_REDUCE: _all_reduce,
    BY_ROW: _by_row,
    BY_COLUMN: _by_column,
    PEERS: _peers,
}
"""The strategies: name -> a function (job, servers, workers) that lists their messages."""
