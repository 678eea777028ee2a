"""How much of each part a step has, for each process (see docs/plan.md)."""

from __future__ import annotations

from dataclasses import dataclass

from twml_ops.planning.cpu_costs import StepParts
from twml_ops.planning.job import Job
from twml_ops.planning.traffic import BY_COLUMN, BY_ROW

MESSAGES = 3  # between a worker and a server: entries, products, gradients
SHARED_MESSAGES = 2  # the values of the dense weights of several workers, and their gradients


@dataclass(frozen=True)
class StepWork:
    """The parts of a step in which every worker trains on one batch.

    Attributes:
        worker: Of a worker.
        server: Of a server, for the batch of one worker.
    """

    worker: StepParts
    server: StepParts


def work_alone(job: Job) -> StepParts:
    """Returns the parts of a step in one process.

    Args:
        job: The model and its batches.
    """
    return StepParts(
        step=1,
        table=len(job.tables),
        entry=sum(t.ids(job.batch) for t in job.tables),
        activation=sum(job.batch * t.sent for t in job.tables),
        product=sum(t.ids(job.batch) * t.units for t in job.tables),
        weight=sum(t.rows(job.batch) * t.units for t in job.tables),
        row=sum(t.rows(job.batch) for t in job.tables),
    )


def work_in_cluster(
    strategy: str, job: Job, servers: int, workers: int, remote: float = 1.0
) -> StepWork:
    """Returns the parts of a step of a hybrid strategy.

    Args:
        strategy: "hybrid by row" or "hybrid by column".
        job: The model and its batches.
        servers: S, the number of servers.
        workers: W, the number of workers.
        remote: Share of the pairs of a worker and a server that are not in one process.

    Raises:
        ValueError: The strategy is another one.
    """
    if strategy not in (BY_ROW, BY_COLUMN):
        raise ValueError(f"strategy must be {BY_ROW} or {BY_COLUMN}, got {strategy!r}")
    by_row, whole = strategy == BY_ROW, work_alone(job)
    several = workers > 1  # a single worker keeps the dense weights
    messages = remote * (MESSAGES + (SHARED_MESSAGES if several and job.dense else 0))
    dense = job.dense if several else 0
    products = whole.activation if by_row else whole.activation / servers
    worker = StepParts(
        step=1,
        message=servers * messages,
        table=whole.table,
        shard=whole.table * servers,
        entry=whole.entry,
        activation=servers * products + dense,
        row=whole.row,
        output=whole.activation,
    )
    server = StepParts(
        message=messages,
        table=whole.table,
        entry=whole.entry / servers if by_row else whole.entry,
        activation=products + dense / servers,
        product=whole.product / servers,
        weight=whole.weight / servers,
        row=whole.row / servers if by_row else whole.row,
    )
    return StepWork(worker, server)
