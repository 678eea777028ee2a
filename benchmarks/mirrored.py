"""A step of two replicas on one machine: ours, and what `tf.distribute` and Keras make of it.

All contenders are a wide layer on a sparse batch, a loss on its output, and the update of the
table, under a MirroredStrategy of two logical CPUs, each replica with half of the batch.
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
from benchmarks.contender import OURS
from benchmarks.contenders import tf as contenders_tf
from benchmarks.contenders.twml import OPTIMIZERS
from benchmarks.kernels import Log
from benchmarks.workload import Batch, Workload
from twml_ops import distribute, layers
from twml_ops.ops._tape import tf_variable

REPLICAS = 2
RULES = ("sgd",)  # the stock strategy's best: Keras' other optimizers touch every row
LOOKUP, EMBEDDING = "embedding_lookup_sparse, stock strategy", "Keras Embedding, stock strategy"
SIZES = tuple(2**p for p in range(18, 23))
LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Entrant:
    """A strategy, a replica's layer from its inputs to [B, D], and its optimizer."""

    strategy: tf.distribute.Strategy
    variables: list[Any]
    call: Callable[..., tf.Tensor]
    optimizer: Any
    form: Callable[[Batch, int], tuple[tf.Tensor, ...]]

    def step(self) -> Callable[[Any], Any]:
        """One training step on what `batches` gives; returns the loss."""

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
        """Each replica its own half of each batch, in this contender's form."""
        give = self.strategy.experimental_distribute_values_from_function
        return [
            give(lambda c, b=b: self.form(_half(b, c.replica_id_in_sync_group), input_dim))
            for b in batches
        ]


def measure(workload: Workload, *, rounds: int, quick: bool = False, log: Log) -> dict[str, Any]:
    """Seconds a step of every contender, and what replicas of ours send for growing tables.

    Returns:
        `times[rule][contender]`, `wrong` losses, `sent[rows of the table]`: bytes a step that one
        replica receives, and `slices`: what the summed rows of a step would have been.
    """
    batches = workload.batches(2 if quick else 4)
    times: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for rule in RULES:
        log(f"mirrored: building for {rule}")
        entrants = _entrants(workload, rule)
        runs, first = {}, {}
        for name, entrant in entrants.items():
            step, data = entrant.step(), entrant.batches(batches, workload.input_dim)
            first[name] = [float(step(data[i % len(data)])) for i in range(2)]
            runs[name] = functools.partial(_run, step, data)
        for name, losses in first.items():
            if not np.allclose(losses, first[OURS], rtol=LOSS_TOLERANCE):
                wrong[f"{rule}: {name}"] = f"losses {losses} where {OURS} has {first[OURS]}"
        log(f"mirrored: timing {rule}")
        found = timing.interleave(runs, range(len(batches)), rounds=rounds)
        times[rule] = {name: asdict(t) for name, t in found.items()}
        del entrants, runs, step, data
        gc.collect()
    sizes = [workload.input_dim, 2 * workload.input_dim] if quick else SIZES
    sent = {}
    for size in sizes:
        log(f"mirrored: traffic for N = {size:,}")
        sent[str(size)] = _sent(workload, size)
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


def _sent(workload: Workload, size: int) -> float:
    """Bytes a replica receives in a step; ids are drawn from as many whatever the table's size."""
    active = min(SIZES[0], workload.input_dim, size)
    batches = workload.with_(input_dim=size, active_ids=active).batches(2)
    entrant = _ours(workload.with_(input_dim=size), "sgd")
    step, data = entrant.step(), entrant.batches(batches, size)
    for inputs in data:
        step(inputs)
    return distribute.received_bytes(entrant.strategy) / REPLICAS / len(data)


def _entrants(workload: Workload, rule: str) -> dict[str, Entrant]:
    return {
        OURS: _ours(workload, rule),
        LOOKUP: _stock(workload, rule, _lookup, _sparse),
        EMBEDDING: _stock(workload, rule, _embedding, _padded),
    }


def _ours(workload: Workload, rule: str) -> Entrant:
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

    return Entrant(strategy, [layer.kernel], call, optimizer, _csr)


def _stock(workload: Workload, rule: str, make: Callable[..., Any], form: Any) -> Entrant:
    strategy = _stock_strategy()
    with strategy.scope():
        table = tf.keras.layers.Embedding(
            workload.input_dim, workload.units, tf.keras.initializers.Constant(0.01)
        )
        table.build(None)
        optimizer = contenders_tf.KERAS[rule]()
        optimizer.build([table.embeddings])
    return Entrant(strategy, [table.embeddings], make(table), optimizer, form)


@functools.cache
def _stock_strategy() -> tf.distribute.Strategy:
    """One for all: collectives of two such strategies in one process get in each other's way."""
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
