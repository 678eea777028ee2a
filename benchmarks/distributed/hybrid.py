"""Hybrid training with `HybridTrainer`, and the same trainer on a single machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.distributed.stock import INITIAL, RATE, Built
from benchmarks.workload import Batch, Workload
from twml_ops import layers, optimizers
from twml_ops.distribute import Cluster, HybridTrainer

PIPELINED_SUFFIX = ", pipelined"
AXES = {"hybrid by row": "row", "hybrid by column": "column", "single machine": "row"}
AXES |= {name + PIPELINED_SUFFIX: axis for name, axis in AXES.items() if name.startswith("hybrid")}
SENT_AS, AND = ", sent as ", " and "  # the types of products and of their gradients
PEER_SECONDS = 240.0


def build(
    strategy: str,
    workload: Workload,
    batches: Sequence[Batch],
    name: str,
    servers: Sequence[str],
    workers: Sequence[str],
    index: int,
) -> Built:
    """Builds a strategy; see `builders.build`.

    "hybrid by row, sent as float16 and int8" sends products in float16 and their gradients in int8.
    """
    strategy, _, types = strategy.partition(SENT_AS)
    products, _, gradients = types.partition(AND)
    single_machine = strategy == "single machine"
    cluster = Cluster() if single_machine else Cluster(servers, workers, "worker", index)
    trainer = HybridTrainer(
        lambda: model(workload),
        optimizers.SGD(RATE),
        "mse",
        cluster=cluster,
        partition_axis=AXES[strategy],
        pipeline=strategy.endswith(PIPELINED_SUFFIX),
        wire_dtype=products or "float32",  # type: ignore[arg-type]
        gradient_wire_dtype=gradients or None,  # type: ignore[arg-type]
        timeout=PEER_SECONDS,
        name=name,
    )
    data = [inputs(b) for b in batches]
    steps_done = 0

    def run(count: int) -> list[float]:
        nonlocal steps_done
        start = steps_done % len(data)
        steps_done += count
        losses: list[float] = []
        while not losses:
            target = count + (0 if trainer.state is None else int(trainer.state.step.value()))
            losses = trainer.fit(lambda _: data[start:] + data[:start], target).losses
        return losses

    def free() -> None:
        for table in trainer.placement.tables:
            for shard in table.shards:
                with tf.device(shard.device):
                    tf.raw_ops.DestroyResourceOp(resource=shard.handle, ignore_lookup_error=True)

    return run, free


def model(workload: Workload) -> tf.keras.Model:
    """The model of the stock strategies: a wide layer whose outputs are added up."""
    ids = tf.keras.Input([None], dtype="int64", ragged=True)
    initial = tf.keras.initializers.Constant(INITIAL)
    y = layers.SparseLinear(
        workload.units, workload.input_dim, use_bias=False, kernel_initializer=initial
    )(ids)
    total = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", trainable=False)
    return tf.keras.Model(ids, total(y))


def inputs(batch: Batch) -> tuple[Any, Any]:
    """A batch as the model takes it, and labels that are all 1."""
    ragged = tf.RaggedTensor.from_row_splits(batch.ids, batch.row_splits)
    return ragged, tf.ones([batch.num_rows, 1])
