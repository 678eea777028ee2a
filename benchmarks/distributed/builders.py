"""Builds the steps of a strategy, by its name, in a worker."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.distributed import BLOCK_ROWS, collective, hybrid, stock, towers
from benchmarks.workload import Batch, Workload


def build(
    strategy: str,
    workload: Workload,
    batches: Sequence[Batch],
    name: str,
    *,
    servers: Sequence[str],
    workers: Sequence[str],
    index: int,
) -> stock.Built:
    """Builds a strategy.

    Args:
        strategy: its name.
        workload: sizes of the table.
        batches: batches, which the steps use cyclically.
        name: the name of the variables on the servers.
        servers: addresses of the servers.
        workers: addresses of the workers.
        index: the index of this worker.

    Returns:
        A function that runs steps, and one that frees the variables.
    """
    if strategy in stock.STRATEGIES:
        device = connect(tuple(servers), tuple(workers), index)
        return _stock(strategy, workload, batches, name, len(servers), device, index == 0)
    if strategy.partition(hybrid.SENT_AS)[0] in hybrid.AXES:
        return hybrid.build(strategy, workload, batches, name, servers, workers, index)
    if strategy in towers.STRATEGIES:
        return towers.build(strategy, workload, batches, name, servers, workers, index)
    if strategy == collective.STRATEGY:
        return collective.build(workload, batches, workers, index)
    raise ValueError(f"no such strategy: {strategy}")


@functools.cache
def connect(servers: tuple[str, ...], workers: tuple[str, ...], index: int) -> str:
    """Connects this process to the servers; returns the device of this worker."""
    spec = tf.train.ClusterSpec({"ps": list(servers), "worker": {index: workers[index]}})
    tf.config.experimental_connect_to_cluster(
        spec, job_name="worker", task_index=index, protocol="grpc"
    )
    return f"/job:worker/replica:0/task:{index}/device:CPU:0"


def _stock(
    strategy: str, workload: Workload, batches: Sequence[Batch], name: str, servers: int,
    worker_device: str, first: bool,
) -> stock.Built:  # fmt: skip
    def shard(p: int, rows: int, part: str) -> stock.Shard:
        device = f"/job:ps/replica:0/task:{p}/device:CPU:0"
        return stock.Shard.open(device, f"{name}/{p}{part}", rows, workload.units, create=first)

    rows = [-(-(workload.input_dim - p) // servers) for p in range(servers)]
    size = BLOCK_ROWS
    shards: list[Any] = (
        [
            [shard(p, min(size, n - a), f"/{a}") for a in range(0, n, size)]
            for p, n in enumerate(rows)
        ]
        if strategy == stock.STANDARD
        else [shard(p, n, "") for p, n in enumerate(rows)]
    )
    signature = [tf.TensorSpec([None], tf.int64)] * 2
    step: Any = tf.function(
        stock.STRATEGIES[strategy](shards, worker_device), input_signature=signature
    )
    with tf.device(worker_device):
        data = [(tf.constant(b.ids), tf.constant(b.row_splits)) for b in batches]

    def free() -> None:
        for shard in tf.nest.flatten(shards) if first else []:
            shard.destroy()

    return stock.cycle(step, data), free
