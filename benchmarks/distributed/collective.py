"""Stock all-reduce: every worker has the whole table, and gradients are summed over a ring."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.distributed.stock import INITIAL, RATE, Built, cycle, loss_of, sum_rows
from benchmarks.workload import Batch, Workload

STRATEGY = "all-reduce"


def build(
    workload: Workload, batches: Sequence[Batch], workers: Sequence[str], index: int
) -> Built:
    """Steps under a MultiWorkerMirroredStrategy that sums gradients as slices."""
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}}
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    table = tf.Variable(tf.fill([workload.input_dim, workload.units], INITIAL))
    data = [(tf.constant(b.ids), tf.constant(b.row_splits)) for b in batches]
    shape = tf.constant([workload.input_dim, workload.units], tf.int64)

    def replica(ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        distinct, positions = tf.unique(ids)
        rows = tf.raw_ops.ResourceGather(resource=table.handle, indices=distinct, dtype=tf.float32)
        rows.set_shape([None, workload.units])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss = loss_of(sum_rows(rows, positions, row_splits))
        slices = tf.IndexedSlices(tape.gradient(loss, rows), distinct, shape)
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, slices)
        tf.raw_ops.ResourceScatterSub(
            resource=table.handle, indices=total.indices, updates=RATE * total.values
        )
        return loss

    signature = [tf.TensorSpec([None], tf.int64)] * 2

    @tf.function(input_signature=signature)
    def step(ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        return strategy.run(replica, args=(ids, row_splits))

    return cycle(step, data), lambda: None
