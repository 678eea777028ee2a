"""Micro-batches: synchronous steps whose bits do not depend on the number of workers.

A step has M micro-batches, a power of two, of which each of W workers computes M / W consecutive
ones. A gradient is the sum over the micro-batches of their own gradients, each times its number of
examples, divided by the number of all examples. The sum is a binary tree over the numbers of the
micro-batches: neighbors are added first (`tree_sum`). The micro-batches of a worker are a subtree,
so that the worker adds its dense gradients itself and the leader adds the sums of the workers; no
addition depends on who makes it. The servers have the entries of all micro-batches, and add the
gradients of each row in the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server import encoding
from twml_ops.distribute.parameter_server.clipping import clips_by_norm
from twml_ops.distribute.parameter_server.products import TableProduct
from twml_ops.distribute.parameter_server.row_classes import ROW_CLASSES
from twml_ops.distribute.parameter_server.state import SharedVariable
from twml_ops.distribute.parameter_server.tables import RemoteTable
from twml_ops.optimizers.gradients import map_values, sum_duplicates


def check_options(
    micro_batches: int,
    workers: int,
    mode: str,
    wire: encoding.WireTypes,
    pipeline: bool,
    exchange_every: int,
    optimizer: Any,
) -> None:
    """Checks the options of a trainer with micro-batches.

    Args:
        micro_batches: See `HybridTrainer`.
        workers: The number of workers.
        mode: See `HybridTrainer`.
        wire: The types of messages.
        pipeline: See `HybridTrainer`.
        exchange_every: See `HybridTrainer`.
        optimizer: The optimizer.

    Raises:
        ValueError: An option is not possible with micro-batches.
    """
    if micro_batches < 1 or micro_batches & (micro_batches - 1) or micro_batches % workers:
        raise ValueError(
            "micro_batches must be a power of two that is a multiple of the number of workers, "
            f"got {micro_batches} with {workers} worker{'s' * (workers > 1)}"
        )
    types = sorted({wire.products.name, wire.gradients.name} - {"float32"})
    for is_used, expected, got, reason in (
        (mode != "sync", 'mode="sync"', repr(mode), "each update has all micro-batches of a step"),
        (pipeline, "pipeline=False", "True", "products would be older with one worker"),
        (exchange_every > 1, "exchange_every=1", exchange_every, "each step is an update"),
        (
            bool(types),
            'wire_dtype and gradient_wire_dtype "float32"',
            ", ".join(types),
            "numbers would be rounded as the plan and the workers divide them",
        ),
        (
            clips_by_norm(optimizer),
            "an optimizer without clipnorm and global_clipnorm",
            "one with them",
            "the order in which norms are added depends on the servers",
        ),
    ):
        if is_used:
            raise ValueError(f"micro_batches needs {expected}, got {got}: {reason}")


def check_tables(tables: Sequence[RemoteTable], lookups: Sequence[Any]) -> None:
    """Checks the tables of a model that is trained with micro-batches.

    Args:
        tables: The tables of the model on servers.
        lookups: The lookups of rows of ids.

    Raises:
        ValueError: A table has rows that ids get in the training, or a tower.
    """
    found = [f"table {t.path}, which has a tower" for t in tables if t.module is not None]
    found += ["one, whose rows workers get in turns"] if lookups else []
    if found:
        raise ValueError(
            f"micro_batches needs a model without DynamicLookup and without towers, got {found[0]}"
        )


def check_divisions(tables: Sequence[RemoteTable]) -> None:
    """Checks how tables are divided, once it is known.

    Args:
        tables: The tables of the model on servers.

    Raises:
        ValueError: The rows of a table have too many parts, or not a power of two, or its parts
            have one column, whose products are added in another order.
    """
    for table in tables:
        if table.division.column_parts == table.shape[1] > 1:
            raise ValueError(
                f"micro_batches needs parts of tables with at least two columns, got one column of "
                f"{table.path} on each server; another partition_axis or plan divides it otherwise"
            )
        if ROW_CLASSES % table.division.row_parts:
            raise ValueError(
                f"micro_batches needs tables whose rows are divided into a power of two of parts, "
                f"at most {ROW_CLASSES}, got {table.division.row_parts} parts of {table.path}; "
                "another partition_axis or plan divides it otherwise"
            )


def check_micro_batch(changed: Sequence[SharedVariable], products: Sequence[TableProduct]) -> None:
    """Checks what the model has done with a micro-batch.

    Args:
        changed: The states of layers that the micro-batch has changed.
        products: Its products with tables.

    Raises:
        ValueError: There are such states, or a layer in front of a table is trained.
    """
    if changed:
        path = getattr(changed[0].local, "path", changed[0].local.name)
        raise ValueError(
            f"micro_batches needs a model whose states batches do not change, got {path} with the "
            f"shape {tuple(changed[0].local.shape)}: the states of workers are joined in another "
            "order than gradients"
        )
    for product in products:
        if product.values_gradient is not None:
            raise ValueError(
                "micro_batches needs a model without trained layers in front of a table, got one "
                f"in front of {product.table.path}: servers add the gradients of values"
            )


def tree_sum(gradients: Sequence[Any]) -> Any:
    """Adds gradients of one variable in a binary tree, neighbors first.

    Args:
        gradients: A power of two of tensors of one shape, or of `tf.IndexedSlices`. A row that is
            not in all of them is the sum of those that have it.

    Returns:
        The sum. `tf.IndexedSlices` have unique ids, unless they were given alone.
    """
    if isinstance(gradients[0], tf.IndexedSlices):
        level = list(gradients)
        while len(level) > 1:
            level = [_added(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        return level[0]
    # TensorFlow makes one AddN of additions that follow one another, which would be a running sum.
    # The slices between them prevent this.
    sums = tf.stack(list(gradients))
    for _ in range(len(gradients).bit_length() - 1):
        sums = sums[0::2] + sums[1::2]
    return sums[0]


def _added(a: tf.IndexedSlices, b: tf.IndexedSlices) -> tf.IndexedSlices:
    values = tf.concat([a.values, b.values], axis=0)
    indices = tf.concat([a.indices, b.indices], axis=0)
    return sum_duplicates(tf.IndexedSlices(values, indices, a.dense_shape))


def weighted_tree_sum(gradients: Sequence[Any], sizes: tf.Tensor) -> Any:
    """Adds gradients of mean losses, each times its number of examples.

    Args:
        gradients: Of one variable, for each micro-batch, a tensor or `tf.IndexedSlices`.
        sizes: int64 [micro-batches], the examples of each.

    Returns:
        The sum of `tree_sum`.
    """
    counts = tf.unstack(sizes, len(gradients))
    return tree_sum([_times(g, n) for g, n in zip(gradients, counts, strict=True)])


def _times(gradient: Any, count: tf.Tensor) -> Any:
    return map_values(sum_duplicates(gradient), lambda t: t * tf.cast(count, t.dtype))


def divided(total: Any, examples: tf.Tensor) -> Any:
    """Divides a sum of `weighted_tree_sum` by the number of examples, a scalar."""
    return map_values(total, lambda t: t / tf.cast(examples, t.dtype))


def dense_sums(by_batch: Sequence[Sequence[Any]], sizes: tf.Tensor) -> list[Any]:
    """Adds the dense gradients of the micro-batches of a worker.

    Args:
        by_batch: For each micro-batch, the gradients of all dense weights; None where there is
            none.
        sizes: int64 [micro-batches], the examples of each.

    Returns:
        For each dense weight, the sum of `weighted_tree_sum`, or None.
    """
    like = [g for g in by_batch[0] if g is not None]
    packed = [encoding.pack_gradients([g for g in each if g is not None]) for each in by_batch]
    sums = [weighted_tree_sum(each, sizes) for each in zip(*packed, strict=True)]
    found = iter(encoding.unpack_gradients(sums, like))
    return [None if g is None else next(found) for g in by_batch[0]]


def split_examples(
    entries: encoding.ShardEntries,
    gradient: tf.Tensor,
    sizes: tf.Tensor,
    micro_batches: int,
    binary: bool,
) -> Iterator[tuple[encoding.ShardEntries, tf.Tensor]]:
    """Iterates over the micro-batches of a joined batch, on its server.

    Args:
        entries: The entries of all micro-batches.
        gradient: float32 [B, D], the gradient of their product.
        sizes: int64 [micro_batches], the examples of each.
        micro_batches: The number of micro-batches.
        binary: Whether the entries have no values.

    Yields:
        The entries of a micro-batch, and the gradient of their product.
    """
    ends = tf.unstack(tf.cumsum(sizes), micro_batches)
    for begin, end in zip([tf.zeros_like(ends[0]), *ends[:-1]], ends, strict=True):
        splits = entries.row_splits[begin : end + 1]
        first, last = splits[0], splits[-1]
        values = entries.values if binary else entries.values[first:last]
        own = encoding.ShardEntries(entries.ids[first:last], values, splits - first)
        yield own, gradient[begin:end]
