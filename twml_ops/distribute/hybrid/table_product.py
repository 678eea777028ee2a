"""The product of a batch with a table, in the graph of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import wire
from twml_ops.distribute.hybrid.deferred_tensor import DeferredTensor
from twml_ops.distribute.hybrid.remote_table import RemoteTable
from twml_ops.placement.entries import CsrEntries


@dataclasses.dataclass(eq=False)
class TableProduct:
    """The product of a batch with one table, which a step uses once.

    The batch may consist of several batches; see `joined_batches`.

    Attributes:
        table: The table.
        binary: Whether the entries have no values.
        entries: The batch; None for a prefetched product.
        messages: For each server, the message with the entries, on the server; none if the table is
            in this process.
        shard_entries: For each server, the entries in its message.
        parts: For a joined batch, the products of its batches, whose outputs, results and gradients
            are used instead of its own.
        result: What `Exchange.determine_products` determines; None if that is not needed.
        output: float32 [B, D], on the worker, watched by the gradient tape of the step; None for a
            joined batch.
        gradient: [B, D], the gradient of the loss with respect to `output`, once it is known.
        sent_gradients: For each server, the gradient that it was sent, float32 [B, D], or
            [B, D / P] if the table is sharded by column.
        values_gradient: [K], the gradient of the loss with respect to the values, if a layer needs
            it.
    """

    table: RemoteTable
    binary: bool
    entries: CsrEntries | None = None
    messages: list[tf.Tensor] = dataclasses.field(default_factory=list)
    shard_entries: list[wire.ShardEntries] = dataclasses.field(default_factory=list)
    parts: list[TableProduct] = dataclasses.field(default_factory=list)
    result: DeferredTensor | None = None
    output: Any = None
    gradient: Any = None
    sent_gradients: list[tf.Tensor] = dataclasses.field(default_factory=list)
    values_gradient: DeferredTensor | None = None

    @property
    def by_batch(self) -> list[TableProduct]:
        """The product of each batch: `parts`, or this product itself."""
        return self.parts or [self]

    def split(self, value: tf.Tensor) -> list[tf.Tensor]:
        """Splits a tensor with a row for each example into one tensor for each batch."""
        return self._split(value, lambda entries: wire.num_rows(entries[2]))

    def split_entries(self, value: tf.Tensor) -> list[tf.Tensor]:
        """Splits a tensor with a number for each entry into one tensor for each batch."""
        return self._split(value, lambda entries: tf.size(entries[0]))

    def _split(self, value: tf.Tensor, size_of: Callable[[CsrEntries], Any]) -> list[tf.Tensor]:
        if not self.parts:
            return [value]
        sizes = [size_of(part.entries) for part in self.parts if part.entries is not None]
        return list(tf.split(value, tf.stack(sizes), num=len(sizes)))

    def tensors_to_store(self) -> list[tuple[tuple[int, str], tf.Tensor]]:
        """Returns the tensors that a later step needs of this product, on their servers.

        Returns:
            ((number, device), tensor) of each tensor.
        """
        if not self.messages:
            device = self.table.shards[0].device
            return [((i, device), t) for i, t in enumerate(self.shard_entries[0])]
        return [
            ((p, s.device), m)
            for p, (s, m) in enumerate(zip(self.table.shards, self.messages, strict=True))
        ]
