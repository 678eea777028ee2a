"""The messages of a step between a worker and the servers, for all products with tables together.

The call of a layer adds a product and returns a tensor, whose value is determined later. When all
products of a step have been added, each server gets one message with the entries of all of them,
and answers with one message. The gradients of all products are sent in one message as well, and so
are the answers to those that layers before the tables need. A message costs CPU time on both sides
whatever its size is, so a step with several small tables depends on their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.hybrid import wire
from twml_ops.distribute.hybrid.deferred_tensor import DeferredTensor, depends_on
from twml_ops.distribute.hybrid.messages import Link
from twml_ops.distribute.hybrid.shared_values import SharedValues
from twml_ops.distribute.hybrid.table_product import TableProduct
from twml_ops.ops._library import library


class Exchange:
    """Products of a step that do not depend on one another, and their messages.

    Args:
        links: The way to each server.
        wire_dtype: The type in which products and their gradients are sent.
        deduplicate: Whether an id that occurs several times is sent once if that is smaller.
        in_process: Whether the tables are in this process, so that nothing is sent.
        values: Values that the servers send with the products, unless they are determined before;
            None: there are none.

    Attributes:
        products: The products.
    """

    def __init__(
        self,
        links: Sequence[Link],
        wire_dtype: tf.DType,
        deduplicate: bool,
        in_process: bool,
        values: SharedValues | None = None,
    ) -> None:
        self._links, self._wire_dtype = links, wire_dtype
        self._deduplicate, self._in_process = deduplicate, in_process
        self._values = values
        self.products: list[TableProduct] = []

    def add(self, product: TableProduct) -> tf.Tensor:
        """Adds a product, which `multiply` computes.

        Args:
            product: The product.

        Returns:
            float32 [B, D], on the worker.
        """
        self.products.append(product)
        product.result = DeferredTensor([None, product.table.shape[1]])
        return product.result.tensor

    def is_needed_for(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Whether tensors depend on products that are not computed yet."""
        return depends_on(tensors, [p.result.tensor for p in self.products if p.result is not None])

    def determine_products(self) -> None:
        """Determines the values that `add` has returned."""
        for product, value in zip(self.products, self.multiply(), strict=True):
            for part, result in zip(product.by_batch, product.split(value), strict=True):
                assert part.result is not None
                part.result.determine(result)

    def multiply(self) -> list[tf.Tensor]:
        """Sends the entries of all products and returns the products, float32 [B, D]."""
        self._send_entries()
        received = [self._multiply_on(p) for p in range(len(self._links))]
        by_server = [products for products, _ in received]
        if self._values is not None:
            self._values.determine([values for _, values in received])
        return [
            _combine(parts, product.table.by_row)
            for product, *parts in zip(self.products, *by_server, strict=True)
        ]

    def _send_entries(self) -> None:
        parts = len(self._links)
        if self._in_process:
            for product in self.products:
                assert product.entries is not None
                ids, values, splits = product.entries
                values = tf.zeros([0]) if values is None else values
                product.shard_entries = [wire.ShardEntries(ids, values, splits)]
            return
        deduplicate = self._deduplicate and not all(link.in_process for link in self._links)
        packed: dict[Any, list[tf.Tensor]] = {}  # tables with the same batch share a message
        keys = []
        for product in self.products:
            assert product.entries is not None
            table, entries = product.table, product.entries
            by_row, rows = table.by_row, table.shape[0]
            key = (*(None if t is None else t.ref() for t in entries), by_row, rows)
            keys.append(key)
            if key not in packed:
                messages = ops.pack_entries(
                    *entries, rows, parts=parts if by_row else 1, deduplicate=deduplicate
                )
                packed[key] = list(messages) if by_row else [messages[0]] * parts
        received: dict[Any, list[Any]] = {key: [] for key in packed}
        for p, link in enumerate(self._links):
            messages = link.to_server([m[p] for m in packed.values()])
            for key, message in zip(packed, messages, strict=True):
                shard_rows = self.products[keys.index(key)].table.shards[p].shape[0]
                with tf.device(link.server):
                    received[key].append((message, wire.receive_entries(message, shard_rows)))
        for product, key in zip(self.products, keys, strict=True):
            product.messages = [message for message, _ in received[key]]
            product.shard_entries = [entries for _, entries in received[key]]

    def _multiply_on(self, p: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the products with the shards of a server, float32 on the worker, and values."""
        products = []
        with tf.device(self._links[p].server):
            for each in self.products:
                entries, shard = each.shard_entries[p], each.table.shards[p]
                product = library.twml_resource_sparse_linear(
                    entries.ids,
                    entries.values,
                    entries.row_splits,
                    shard.handle,
                    binary=each.binary,
                )
                products.append(wire.cast_for_wire(product, self._wire_dtype))
        values = [] if self._values is None else self._values.of_server(p)
        received = self._links[p].to_worker([*products, *values])
        columns = [each.table.shards[p].shape[1] for each in self.products]
        found = [
            tf.cast(tf.reshape(part, [-1, c]), tf.float32)
            for part, c in zip(received, columns, strict=False)
        ]
        return found, received[len(products) :]

    def send_gradients(
        self, others: Sequence[Sequence[tf.Tensor]] | None = None
    ) -> list[list[tf.Tensor]]:
        """Sends the gradients of the products, and determines the gradients of values.

        Args:
            others: For each server, tensors that the updates on it need; None: there are none.

        Returns:
            For each server, `others` on that server, in one dimension each; nothing if there are no
            gradients.
        """
        used = [p for p in self.products if p.gradient is not None]
        if not used:
            return []
        others = [[] for _ in self._links] if others is None else others
        count = len(self._links)
        by_server = [
            [p.gradient] * count if p.table.by_row else tf.split(p.gradient, count, axis=1)
            for p in used
        ]
        received = []
        for p, link in enumerate(self._links):
            parts = [wire.cast_for_wire(g[p], self._wire_dtype) for g in by_server]
            sent = link.to_server([*parts, *others[p]])
            columns = [each.table.shards[p].shape[1] for each in used]
            for product, part, c in zip(used, sent, columns, strict=False):
                with tf.device(link.server):
                    gradient = tf.cast(tf.reshape(part, [-1, c]), tf.float32)
                    product.sent_gradients.append(gradient)
            received.append(sent[len(used) :])
        deferred = [p for p in used if p.by_batch[0].values_gradient is not None]
        for product, value in zip(deferred, self.values_gradients(deferred), strict=True):
            for part, own in zip(product.by_batch, product.split_entries(value), strict=True):
                assert part.values_gradient is not None
                part.values_gradient.determine(own)
        return received

    def values_gradients(self, wanted: Sequence[TableProduct]) -> list[tf.Tensor]:
        """Computes gradients by values, of which each server has a part.

        Args:
            wanted: Products whose gradients have been sent.

        Returns:
            For each, the gradient of the loss with respect to its values, [K], on the worker.
        """
        if not wanted:
            return []
        count = len(self._links)
        positions = [_positions_by_server(each, count) for each in wanted]
        by_server = []
        for p, link in enumerate(self._links):
            with tf.device(link.server):
                computed = [
                    library.twml_resource_sparse_linear_values_grad(
                        each.shard_entries[p].ids,
                        each.shard_entries[p].row_splits,
                        each.table.shards[p].handle,
                        each.sent_gradients[p],
                    )
                    for each in wanted
                ]
            by_server.append(link.to_worker(computed))
        return [
            _combine_values(at, parts, each.table.by_row)
            for each, at, *parts in zip(wanted, positions, *by_server, strict=True)
        ]


def _combine_values(
    positions: Sequence[tf.Tensor], parts: Sequence[tf.Tensor], by_row: bool
) -> tf.Tensor:
    if len(parts) == 1:
        return tf.identity(parts[0])
    return tf.dynamic_stitch(positions, parts) if by_row else tf.add_n(parts)


def _positions_by_server(product: TableProduct, count: int) -> list[tf.Tensor]:
    """Returns the positions in the batch of the entries that each server has."""
    assert product.entries is not None
    ids = product.entries[0]
    positions = tf.range(tf.size(ids))
    if count == 1 or not product.table.by_row:
        return [positions] * count
    return tf.dynamic_partition(positions, tf.cast(ids % count, tf.int32), count)


def _combine(parts: Sequence[tf.Tensor], by_row: bool) -> tf.Tensor:
    """Returns the product with a table, [B, D], from the products with its shards."""
    if len(parts) == 1:
        return parts[0]
    return tf.add_n(parts) if by_row else tf.concat(parts, axis=1)
