"""A training step of two replicas on one machine: twml_ops, and stock `tf.distribute` with Keras.

Every contender is a wide layer on a sparse batch, a loss on its output, and the update of the
table, under a MirroredStrategy of two logical CPUs. Each replica processes half of the batch.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import timing
from benchmarks.contender import TWML_OPS
from benchmarks.contenders import tf as contenders_tf
from benchmarks.contenders.twml import OPTIMIZERS
from benchmarks.kernels import Log
from benchmarks.workload import Batch, Workload
from twml_ops import distribute, layers
from twml_ops.ops._tape import tf_variable

REPLICAS = 2
RULES = ("sgd",)  # the fastest rule of the stock strategy: other Keras optimizers touch every row
LOOKUP, EMBEDDING = "embedding_lookup_sparse, stock strategy", "Keras Embedding, stock strategy"
SIZES = tuple(2**p for p in range(18, 23))
LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ReplicatedContender:
    """A layer and its optimizer under a strategy.

    Attributes:
        strategy: the distribution strategy.
        variables: the trainable variables of the layer.
        call: the layer, from the inputs of a replica to [B, D].
        optimizer: updates the variables.
        convert: converts a batch and the number of rows of the table to the layer's inputs.
    """

    strategy: tf.distribute.Strategy
    variables: list[Any]
    call: Callable[..., tf.Tensor]
    optimizer: Any
    convert: Callable[[Batch, int], tuple[tf.Tensor, ...]]

    def step(self) -> Callable[[Any], Any]:
        """A function that makes one training step on an element of `batches`; returns the loss."""

        def replica(*inputs: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                y = self.call(*inputs)
                loss = tf.reduce_mean((tf.reduce_sum(y, axis=1) - 1) ** 2) / REPLICAS
            gradients = tape.gradient(loss, [tf_variable(v) for v in self.variables])
            self.optimizer.apply_gradients(list(zip(gradients, self.variables, strict=True)))
            return loss

        @tf.function
        def step(inputs: Any) -> tf.Tensor:
            losses = self.strategy.run(replica, args=inputs)
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        return step

    def batches(self, batches: list[Batch], input_dim: int) -> list[Any]:
        """Divides each batch among the replicas, in the input form of this contender."""
        distribute_values = self.strategy.experimental_distribute_values_from_function
        return [
            distribute_values(
                lambda c, b=b: self.convert(_half(b, c.replica_id_in_sync_group), input_dim)
            )
            for b in batches
        ]


def measure(workload: Workload, *, rounds: int, quick: bool = False, log: Log) -> dict[str, Any]:
    """Measures a step of every contender, and the traffic of twml_ops for tables of growing size.

    Args:
        workload: sizes of the batch and the table.
        rounds: turns of each contender.
        quick: use tiny sizes.
        log: receives progress messages.

    Returns:
        `times[rule][contender]` in seconds per step; `wrong` losses; `sent[rows of the table]`, the
        bytes that one replica receives per step; and `slices`, the size in bytes of the summed rows
        of a step.
    """
    batches = workload.batches(2 if quick else 4)
    times: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for rule in RULES:
        log(f"mirrored: building for {rule}")
        contenders = _contenders(workload, rule)
        runs, first = {}, {}
        for name, contender in contenders.items():
            step, data = contender.step(), contender.batches(batches, workload.input_dim)
            first[name] = [float(step(data[i % len(data)])) for i in range(2)]
            runs[name] = functools.partial(_run, step, data)
        for name, losses in first.items():
            if not np.allclose(losses, first[TWML_OPS], rtol=LOSS_TOLERANCE):
                wrong[f"{rule}: {name}"] = f"losses {losses} where {TWML_OPS} has {first[TWML_OPS]}"
        log(f"mirrored: timing {rule}")
        found = timing.interleave(runs, range(len(batches)), rounds=rounds)
        times[rule] = {name: asdict(t) for name, t in found.items()}
        del contenders, runs, step, data
        gc.collect()
    sizes = [workload.input_dim, 2 * workload.input_dim] if quick else SIZES
    sent = {}
    for size in sizes:
        log(f"mirrored: traffic for N = {size:,}")
        sent[str(size)] = _bytes_received(workload, size)
    rows = sum(len(np.unique(_half(batches[0], i).ids)) for i in range(REPLICAS)) / REPLICAS
    return {
        "workload": asdict(workload),
        "rounds": rounds,
        "times": times,
        "wrong": wrong,
        "sent": sent,
        "slices": rows * (8 + 4 * workload.units),
    }


def _run(step: Callable[[Any], Any], data: list[Any], i: int) -> float:
    return float(step(data[i]))


def _bytes_received(workload: Workload, size: int) -> float:
    """Bytes that a replica receives per step; all sizes have the same number of active ids."""
    active = min(SIZES[0], workload.input_dim, size)
    batches = workload.replace(input_dim=size, active_ids=active).batches(2)
    contender = _twml_ops(workload.replace(input_dim=size), "sgd")
    step, data = contender.step(), contender.batches(batches, size)
    for inputs in data:
        step(inputs)
    return distribute.received_bytes(contender.strategy) / REPLICAS / len(data)


def _contenders(workload: Workload, rule: str) -> dict[str, ReplicatedContender]:
    return {
        TWML_OPS: _twml_ops(workload, rule),
        LOOKUP: _stock(workload, rule, _lookup, _sparse),
        EMBEDDING: _stock(workload, rule, _embedding, _padded),
    }


def _twml_ops(workload: Workload, rule: str) -> ReplicatedContender:
    strategy = distribute.mirrored_strategy(REPLICAS)
    with strategy.scope():
        initial = tf.keras.initializers.Constant(0.01)
        layer = layers.SparseLinear(
            workload.units, workload.input_dim, use_bias=False, kernel_initializer=initial
        )
        layer.build(None)
        optimizer = OPTIMIZERS[rule]()
        optimizer.build([layer.kernel])

    def call(ids: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        pair = (
            tf.RaggedTensor.from_row_splits(x, row_splits, validate=False) for x in (ids, values)
        )
        return layer(tuple(pair))

    return ReplicatedContender(strategy, [layer.kernel], call, optimizer, _csr)


def _stock(
    workload: Workload, rule: str, make: Callable[..., Any], form: Any
) -> ReplicatedContender:
    strategy = _stock_strategy()
    with strategy.scope():
        table = tf.keras.layers.Embedding(
            workload.input_dim, workload.units, tf.keras.initializers.Constant(0.01)
        )
        table.build(None)
        optimizer = contenders_tf.KERAS[rule]()
        optimizer.build([table.embeddings])
    return ReplicatedContender(strategy, [table.embeddings], make(table), optimizer, form)


@functools.cache
def _stock_strategy() -> tf.distribute.Strategy:
    """The only stock strategy, as collectives of two of them in one process interfere."""
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)])


def _lookup(table: Any) -> Callable[..., tf.Tensor]:
    variable = tf_variable(table.embeddings)
    return lambda x: contenders_tf.lookup(x, variable)


def _embedding(table: Any) -> Callable[..., tf.Tensor]:
    return lambda ids, values: tf.einsum("blu,bl->bu", table(ids), values)


def _half(batch: Batch, part: int) -> Batch:
    rows = batch.num_rows // REPLICAS
    splits = batch.row_splits[part * rows : (part + 1) * rows + 1]
    entries = slice(splits[0], splits[-1])
    return Batch(batch.ids[entries], batch.values[entries], splits - splits[0], batch.unique)


def _csr(batch: Batch, _: int) -> tuple[tf.Tensor, ...]:
    return tuple(map(tf.constant, (batch.ids, batch.values, batch.row_splits)))


def _sparse(batch: Batch, input_dim: int) -> tuple[tf.SparseTensor]:
    indices = np.stack([batch.row_indices, batch.ids], axis=1)
    return (tf.SparseTensor(indices, batch.values, [batch.num_rows, input_dim]),)


def _padded(batch: Batch, _: int) -> tuple[tf.Tensor, ...]:
    ragged = (
        tf.RaggedTensor.from_row_splits(x, batch.row_splits) for x in (batch.ids, batch.values)
    )
    return tuple(r.to_tensor() for r in ragged)
