"""From the name of a strategy to what runs its steps in a worker."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.distributed import collective, ours, stock
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
    """The steps of `strategy` on `batches`, one after the other, and what frees its variables."""
    if strategy in stock.STRATEGIES:
        here = connect(tuple(servers), tuple(workers), index)
        return _stock(strategy, workload, batches, name, len(servers), here, index == 0)
    if strategy in ours.AXES:
        return ours.build(strategy, workload, batches, name, servers, workers, index)
    if strategy == collective.STRATEGY:
        return collective.build(workload, batches, workers, index)
    raise ValueError(f"no such strategy: {strategy}")


@functools.cache
def connect(servers: tuple[str, ...], workers: tuple[str, ...], index: int) -> str:
    """Makes the servers' devices known to this process; returns its own."""
    spec = tf.train.ClusterSpec({"ps": list(servers), "worker": {index: workers[index]}})
    tf.config.experimental_connect_to_cluster(
        spec, job_name="worker", task_index=index, protocol="grpc"
    )
    return f"/job:worker/replica:0/task:{index}/device:CPU:0"


def _stock(
    strategy: str, workload: Workload, batches: Sequence[Batch], name: str, servers: int,
    here: str, first: bool,
) -> stock.Built:  # fmt: skip
    n = workload.input_dim
    shards = [
        stock.Shard.on(
            f"/job:ps/replica:0/task:{p}/device:CPU:0",
            f"{name}/{p}",
            -(-(n - p) // servers),
            workload.units,
            make=first,
        )
        for p in range(servers)
    ]
    signature = [tf.TensorSpec([None], tf.int64)] * 2
    step: Any = tf.function(stock.STRATEGIES[strategy](shards, here), input_signature=signature)
    with tf.device(here):
        data = [(tf.constant(b.ids), tf.constant(b.row_splits)) for b in batches]

    def free() -> None:
        for shard in shards if first else []:
            shard.destroy()

    return stock.in_turn(step, data), free
