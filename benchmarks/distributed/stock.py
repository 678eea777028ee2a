"""Strategies of stock TensorFlow: tables in variables of the servers, arithmetic on the workers.

Rows are dealt to the S servers by id mod S. The updates are plain SGD.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from benchmarks.distributed import BLOCK_ROWS

RATE = 1e-7
INITIAL = 1e-5
Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # (ids [K], row_splits [B + 1]) -> loss
Run = Callable[[int], list[float]]  # so many steps -> the losses
Built = tuple[Run, Callable[[], None]]  # what runs the steps, and what frees the variables


def in_turn(step: Step, data: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> Run:
    """Steps on the batches, over and over."""
    batches = itertools.cycle(data)
    return lambda count: [float(step(*batch)) for batch in itertools.islice(batches, count)]


@dataclass(frozen=True)
class Shard:
    """A server's rows of the table, one variable for all workers that name it alike."""

    handle: tf.Tensor
    device: str
    units: int
    count: int

    @staticmethod
    def on(device: str, name: str, rows: int, units: int, make: bool) -> Shard:
        """The variable of that name; `make` fills it."""
        with tf.device(device):
            handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=[rows, units], shared_name=name, container=""
            )
            if make:
                value = tf.fill([rows, units], INITIAL)
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                # Waits: a function could otherwise get there first.
                assert tf.raw_ops.VarIsInitializedOp(resource=handle).numpy()
        return Shard(handle, device, units, rows)

    def read(self) -> tf.Tensor:
        """All of it."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)
        value.set_shape([None, self.units])
        return value

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Some of its rows."""
        with tf.device(self.device):
            return tf.raw_ops.ResourceGather(resource=self.handle, indices=ids, dtype=tf.float32)

    def subtract(self, value: tf.Tensor) -> tf.Operation:
        """From all of it."""
        with tf.device(self.device):
            return tf.raw_ops.AssignSubVariableOp(resource=self.handle, value=value)

    def subtract_rows(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """From some of its rows."""
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterSub(resource=self.handle, indices=ids, updates=rows)

    def destroy(self) -> None:
        """Frees its memory on the server."""
        with tf.device(self.device):
            tf.raw_ops.DestroyResourceOp(resource=self.handle, ignore_lookup_error=True)


def loss_of(y: tf.Tensor) -> tf.Tensor:
    """The dense part: one number an example, its target is 1."""
    return tf.reduce_mean((tf.reduce_sum(y, axis=1) - 1) ** 2)


def standard(blocks: Sequence[Sequence[Shard]], here: str) -> Step:
    """All weights come here, `sparse_dense_matmul`, and the dense gradient goes back.

    Args:
        blocks: of each server, one after the other: a server's next block is read once the product
            with the last one is made, so that no host holds more than a block or two of the other's
            table. All servers send at once.
        here: the worker's device.
    """

    def step(ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        with tf.device(here):
            rows = tf.cast(_rows(row_splits), tf.int64)
            count = tf.size(row_splits, tf.int64) - 1
            of_all = [(p, i, b) for p, of in enumerate(blocks) for i, b in enumerate(of)]
            entries = [_part(ids, rows, count, p, len(blocks), i, b) for p, i, b in of_all]
            products: list[tf.Tensor] = []
            for (_, i, block), part in zip(of_all, entries, strict=True):
                with tf.control_dependencies(products[-1:] if i else []):
                    table = tf.identity(block.read())
                    products.append(tf.sparse.sparse_dense_matmul(part, table))
            y = tf.add_n(products)
            with tf.GradientTape() as tape:
                tape.watch(y)
                loss = loss_of(y)
            upstream = RATE * tape.gradient(loss, y)
            sent: list[tf.Operation] = []
            for (_, i, block), part in zip(of_all, entries, strict=True):
                with tf.control_dependencies(sent[-1:] if i else []):
                    gradient = tf.sparse.sparse_dense_matmul(part, upstream, adjoint_a=True)
                    sent.append(block.subtract(gradient))
        return loss

    return step


def row_lookup(shards: Sequence[Shard], here: str) -> Step:
    """The distinct rows of a batch come here, and their gradients go back."""

    def step(ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        with tf.device(here):
            distinct, places = tf.unique(ids)
            owner = tf.cast(distinct % len(shards), tf.int32)
            asked = tf.dynamic_partition(distinct // len(shards), owner, len(shards))
            order = tf.dynamic_partition(tf.range(tf.size(distinct)), owner, len(shards))
            found = [tf.identity(s.rows(a)) for s, a in zip(shards, asked, strict=True)]
            with tf.GradientTape() as tape:
                tape.watch(found)
                rows = tf.dynamic_stitch(order, found)
                rows.set_shape([None, shards[0].units])
                y = sum_rows(rows, places, row_splits)
                loss = loss_of(y)
            gradients = tape.gradient(loss, found)
            for shard, part, gradient in zip(shards, asked, gradients, strict=True):
                shard.subtract_rows(part, RATE * gradient)
        return loss

    return step


def transport(shards: Sequence[Shard], here: str) -> Step:
    """Only sends: as much as a shard has, from here to its server, one after the other."""
    with tf.device(here):
        tables = [tf.fill([s.count, s.units], INITIAL) for s in shards]

    def step(ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        del ids, row_splits
        arrived = tf.constant(0.0)
        for shard, table in zip(shards, tables, strict=True):
            with tf.device(shard.device), tf.control_dependencies([arrived]):
                arrived = tf.reduce_max(table)
        return arrived

    return step


def _part(
    ids: tf.Tensor, rows: tf.Tensor, count: tf.Tensor, p: int, servers: int, i: int, block: Shard
) -> tf.SparseTensor:
    """The entries of block i of server p, [B, rows of the block]."""
    first = i * BLOCK_ROWS
    own = ids // servers - first
    mine = (ids % servers == p) & (own >= 0) & (own < block.count)
    places = tf.boolean_mask(tf.stack([rows, own], axis=1), mine)
    shape = tf.stack([count, tf.constant(block.count, tf.int64)])
    return tf.SparseTensor(places, tf.ones(tf.shape(places)[0]), shape)


def sum_rows(rows: tf.Tensor, places: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
    """[B, D]: of each example the sum of `rows` at its entries' `places`."""
    count = tf.size(row_splits) - 1
    return tf.sparse.segment_sum(rows, places, _rows(row_splits), num_segments=count)


def _rows(row_splits: tf.Tensor) -> tf.Tensor:
    """The example of each entry."""
    return tf.repeat(tf.range(tf.size(row_splits) - 1), row_splits[1:] - row_splits[:-1])


STANDARD, LOOKUP, TRANSPORT = "standard parameter server", "row lookup", "transport"
STRATEGIES: dict[str, Callable[[Sequence[Any], str], Step]] = {
    STANDARD: standard,
    LOOKUP: row_lookup,
    TRANSPORT: transport,
}
