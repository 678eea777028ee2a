"""Strategies of stock TensorFlow: variables on the servers, arithmetic on the workers.

The row of an id is on server id mod S. Updates are SGD.
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
Run = Callable[[int], list[float]]  # number of steps -> their losses
Built = tuple[Run, Callable[[], None]]  # runs the steps; frees the variables


def cycle(step: Step, data: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> Run:
    """A function that runs steps on the batches, used cyclically."""
    batches = itertools.cycle(data)
    return lambda count: [float(step(*batch)) for batch in itertools.islice(batches, count)]


@dataclass(frozen=True)
class Shard:
    """The rows of the table on one server, a variable that all workers share by its name.

    Attributes:
        handle: the handle of the variable.
        device: the device of the server.
        units: columns.
        count: rows.
    """

    handle: tf.Tensor
    device: str
    units: int
    count: int

    @staticmethod
    def open(device: str, name: str, rows: int, units: int, create: bool) -> Shard:
        """The variable with this name on a device; `create` initializes it."""
        with tf.device(device):
            handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=[rows, units], shared_name=name, container=""
            )
            if create:
                value = tf.fill([rows, units], INITIAL)
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                # Waits for the assignment; a function could otherwise read the variable first.
                assert tf.raw_ops.VarIsInitializedOp(resource=handle).numpy()
        return Shard(handle, device, units, rows)

    def read(self) -> tf.Tensor:
        """The whole shard."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)
        value.set_shape([None, self.units])
        return value

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """The rows with these local ids."""
        with tf.device(self.device):
            return tf.raw_ops.ResourceGather(resource=self.handle, indices=ids, dtype=tf.float32)

    def subtract(self, value: tf.Tensor) -> tf.Operation:
        """Subtracts from the whole shard."""
        with tf.device(self.device):
            return tf.raw_ops.AssignSubVariableOp(resource=self.handle, value=value)

    def subtract_rows(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Subtracts from the rows with these local ids."""
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterSub(resource=self.handle, indices=ids, updates=rows)

    def destroy(self) -> None:
        """Frees the memory on the server."""
        with tf.device(self.device):
            tf.raw_ops.DestroyResourceOp(resource=self.handle, ignore_lookup_error=True)


def loss_of(y: tf.Tensor) -> tf.Tensor:
    """The dense part of the model: the mean squared error of the sums of `y`, whose target is 1."""
    return tf.reduce_mean((tf.reduce_sum(y, axis=1) - 1) ** 2)


def standard_parameter_server(blocks: Sequence[Sequence[Shard]], worker_device: str) -> Step:
    """Reads all weights, multiplies with `sparse_dense_matmul`, and sends the dense gradient back.

    Args:
        blocks: the blocks of each server. The next block of a server is read after the product with
            the previous one, so that no host holds more than one or two blocks of another host. All
            servers send at the same time.
        worker_device: device of the worker.
    """

    def step(ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        with tf.device(worker_device):
            rows = tf.cast(_rows(row_splits), tf.int64)
            count = tf.size(row_splits, tf.int64) - 1
            all_blocks = [
                (p, i, block)
                for p, of_server in enumerate(blocks)
                for i, block in enumerate(of_server)
            ]
            entries = [_part(ids, rows, count, p, len(blocks), i, b) for p, i, b in all_blocks]
            products: list[tf.Tensor] = []
            for (_, i, block), part in zip(all_blocks, entries, strict=True):
                with tf.control_dependencies(products[-1:] if i else []):
                    table = tf.identity(block.read())
                    products.append(tf.sparse.sparse_dense_matmul(part, table))
            y = tf.add_n(products)
            with tf.GradientTape() as tape:
                tape.watch(y)
                loss = loss_of(y)
            upstream = RATE * tape.gradient(loss, y)
            sent: list[tf.Operation] = []
            for (_, i, block), part in zip(all_blocks, entries, strict=True):
                with tf.control_dependencies(sent[-1:] if i else []):
                    gradient = tf.sparse.sparse_dense_matmul(part, upstream, adjoint_a=True)
                    sent.append(block.subtract(gradient))
        return loss

    return step


def row_lookup(shards: Sequence[Shard], worker_device: str) -> Step:
    """Reads the distinct rows of a batch, and sends their gradients back.

    Args:
        shards: one per server.
        worker_device: device of the worker.
    """

    def step(ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        with tf.device(worker_device):
            distinct, positions = tf.unique(ids)
            server = tf.cast(distinct % len(shards), tf.int32)
            local_ids = tf.dynamic_partition(distinct // len(shards), server, len(shards))
            order = tf.dynamic_partition(tf.range(tf.size(distinct)), server, len(shards))
            found = [tf.identity(s.rows(i)) for s, i in zip(shards, local_ids, strict=True)]
            with tf.GradientTape() as tape:
                tape.watch(found)
                rows = tf.dynamic_stitch(order, found)
                rows.set_shape([None, shards[0].units])
                y = sum_rows(rows, positions, row_splits)
                loss = loss_of(y)
            gradients = tape.gradient(loss, found)
            for shard, part, gradient in zip(shards, local_ids, gradients, strict=True):
                shard.subtract_rows(part, RATE * gradient)
        return loss

    return step


def transport(shards: Sequence[Shard], worker_device: str) -> Step:
    """Sends a tensor of the size of each shard to its server, one after the other.

    Args:
        shards: one per server.
        worker_device: device of the worker.
    """
    with tf.device(worker_device):
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
    columns = ids // servers - first
    in_block = (ids % servers == p) & (columns >= 0) & (columns < block.count)
    indices = tf.boolean_mask(tf.stack([rows, columns], axis=1), in_block)
    shape = tf.stack([count, tf.constant(block.count, tf.int64)])
    return tf.SparseTensor(indices, tf.ones(tf.shape(indices)[0]), shape)


def sum_rows(rows: tf.Tensor, positions: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
    """Sums, for each example, the rows at the positions of its entries: [B, D]."""
    count = tf.size(row_splits) - 1
    return tf.sparse.segment_sum(rows, positions, _rows(row_splits), num_segments=count)


def _rows(row_splits: tf.Tensor) -> tf.Tensor:
    """The example of each entry."""
    return tf.repeat(tf.range(tf.size(row_splits) - 1), row_splits[1:] - row_splits[:-1])


STANDARD, LOOKUP, TRANSPORT = "standard parameter server", "row lookup", "transport"
STRATEGIES: dict[str, Callable[[Sequence[Any], str], Step]] = {
    STANDARD: standard_parameter_server,
    LOOKUP: row_lookup,
    TRANSPORT: transport,
}
