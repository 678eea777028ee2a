"""Which messages a step sends: between a worker and each server, for all tables together.

The call of a layer adds a product and returns a tensor, whose value is determined later. When all
products of a step have been added, there are these messages with each server:

1. to the server: the entries of all products;
2. to the worker: all products, and the shared values that the step begins with (`SharedValues`);
3. to the server: the gradients of all products, and what the updates need;
4. to the worker: the gradients of the values, only if a layer in front of a table trains.

A message costs CPU time on both sides whatever its size is, so a step with several small tables
depends on the number of messages. `encoding` says how many bytes they have, and `transport` how
they get to the other process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.parameter_server import encoding
from twml_ops.distribute.parameter_server.products import DeferredTensor, TableProduct, depends_on
from twml_ops.distribute.parameter_server.tables import RemoteVariable
from twml_ops.distribute.parameter_server.transport import Link
from twml_ops.ops._library import library


class Exchange:
    """Products of a step that do not depend on one another, and their messages.

    Args:
        links: The way to each server.
        wire: The types in which products and their gradients are sent.
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
        wire: encoding.WireTypes,
        deduplicate: bool,
        in_process: bool,
        values: SharedValues | None = None,
    ) -> None:
        self._links, self._wire = links, wire
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
        """Tells whether tensors depend on products that are not computed yet."""
        return depends_on(tensors, [p.result.tensor for p in self.products if p.result is not None])

    def determine_products(self) -> None:
        """Determines the values that `add` has returned."""
        for product, value in zip(self.products, self.multiply(), strict=True):
            for each, result in zip(product.by_batch, product.split(value), strict=True):
                assert each.result is not None
                each.result.determine(result)

    def multiply(self) -> list[tf.Tensor]:
        """Sends the entries of all products and returns the products, float32 [B, D]."""
        self._send_entries()
        received = [self._multiply_on(p) for p in range(len(self._links))]
        by_server = [products for products, _ in received]
        if self._values is not None:
            self._values.determine([values for _, values in received])
        return [
            _combine(from_shards, product.table.by_row)
            for product, *from_shards in zip(self.products, *by_server, strict=True)
        ]

    def _send_entries(self) -> None:
        servers = len(self._links)
        if self._in_process:
            for product in self.products:
                assert product.entries is not None
                ids, values, splits = product.entries
                values = tf.zeros([0]) if values is None else values
                product.shard_entries = [encoding.ShardEntries(ids, values, splits)]
                if product.new_rows is not None:
                    product.table.lookup.begin_rows(0, product.new_rows)
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
                    *entries, rows, parts=servers if by_row else 1, deduplicate=deduplicate
                )
                packed[key] = list(messages) if by_row else [messages[0]] * servers
        received: dict[Any, list[Any]] = {key: [] for key in packed}
        begun = [product for product in self.products if product.new_rows is not None]
        for p, link in enumerate(self._links):
            new_rows = [product.new_rows for product in begun]
            messages = link.to_server([*(m[p] for m in packed.values()), *new_rows])
            for product, rows in zip(begun, messages[len(packed) :], strict=True):
                product.table.lookup.begin_rows(p, rows)
            for key, message in zip(packed, messages, strict=False):
                shard_rows = self.products[keys.index(key)].table.shards[p].shape[0]
                with tf.device(link.server):
                    received[key].append((message, encoding.decode_entries(message, shard_rows)))
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
                products += encoding.encode_rows(product, self._wire.products)
        values = [] if self._values is None else self._values.of_server(p)
        received = iter(self._links[p].to_worker([*products, *values]))
        columns = [each.table.shards[p].shape[1] for each in self.products]
        found = [encoding.decode_rows(received, c, self._wire.products) for c in columns]
        return found, list(received)

    def send_gradients(
        self,
        others: Sequence[Sequence[tf.Tensor]] | None = None,
        random_bits: Iterator[encoding.RandomBits] | None = None,
    ) -> list[list[tf.Tensor]]:
        """Sends the gradients of the products, and determines the gradients of values.

        Args:
            others: For each server, tensors that the updates on it need; None: there are none.
            random_bits: Others for each gradient and each step, with which int8 gradients are
                rounded; None: to the nearest.

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
            dtype = self._wire.gradients
            gradients = []
            for g in by_server:
                bits = None if random_bits is None else next(random_bits)
                gradients += encoding.encode_rows(g[p], dtype, bits)
            sent = iter(link.to_server([*gradients, *others[p]]))
            for product in used:
                columns = product.table.shards[p].shape[1]
                with tf.device(link.server):
                    product.sent_gradients.append(encoding.decode_rows(sent, columns, dtype))
            received.append(list(sent))
        deferred = [p for p in used if p.by_batch[0].values_gradient is not None]
        for product, value in zip(deferred, self.values_gradients(deferred), strict=True):
            for each, own in zip(product.by_batch, product.split_entries(value), strict=True):
                assert each.values_gradient is not None
                each.values_gradient.determine(own)
        return received

    def values_gradients(self, wanted: Sequence[TableProduct]) -> list[tf.Tensor]:
        """Computes the gradients of the values of entries from what each server contributes.

        Args:
            wanted: Products whose gradients have been sent.

        Returns:
            For each product, the gradient of the loss with respect to the values, [K], on the
            worker.
        """
        if not wanted:
            return []
        count = len(self._links)
        shared: dict[
            Any, list[tf.Tensor]
        ] = {}  # tables with the same batch have the same positions
        positions = []
        for each in wanted:
            assert each.entries is not None
            key = each.entries[0].ref(), each.table.by_row
            if key not in shared:
                shared[key] = _positions_by_server(each, count)
            positions.append(shared[key])
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
            _combine_values(at, from_shards, each.table.by_row)
            for each, at, *from_shards in zip(wanted, positions, *by_server, strict=True)
        ]


def _combine_values(
    positions: Sequence[tf.Tensor], from_shards: Sequence[tf.Tensor], by_row: bool
) -> tf.Tensor:
    if len(from_shards) == 1:
        return tf.identity(from_shards[0])
    return tf.dynamic_stitch(positions, from_shards) if by_row else tf.add_n(from_shards)


def _positions_by_server(product: TableProduct, count: int) -> list[tf.Tensor]:
    """Returns the positions in the batch of the entries that each server has."""
    assert product.entries is not None
    ids = product.entries[0]
    positions = tf.range(tf.size(ids))
    if count == 1 or not product.table.by_row:
        return [positions] * count
    return tf.dynamic_partition(positions, tf.cast(ids % count, tf.int32), count)


def _combine(from_shards: Sequence[tf.Tensor], by_row: bool) -> tf.Tensor:
    """Returns the product with a table, [B, D], from the products with its shards."""
    if len(from_shards) == 1:
        return from_shards[0]
    return tf.add_n(from_shards) if by_row else tf.concat(from_shards, axis=1)


class SharedValues:
    """The values on the servers that a step of a worker begins with, sent with the products.

    They are read before the step begins, in the order of the graph, but the worker gets them later:
    in the message with the first products of each server, or in a message of their own if a layer
    in front of a table needs them. Used in a graph.

    Args:
        pairs: A variable on a server, and the variables of this process that get its value.
        links: The way to each server.
    """

    def __init__(
        self, pairs: Sequence[tuple[RemoteVariable, Sequence[tf.Variable]]], links: Sequence[Link]
    ) -> None:
        self._links = links
        graph = tf.compat.v1.get_default_graph()
        self._handles = [graph.capture(v.handle) for _, variables in pairs for v in variables]
        self._values: list[list[tf.Tensor]] = []
        self._deferred: list[list[DeferredTensor]] = []
        for link in links:
            of_server = [(r, variables) for r, variables in pairs if r.device == link.server]
            self._values.append([remote.value() for remote, _ in of_server])
            self._deferred.append([DeferredTensor([None], r.dtype) for r, _ in of_server])
            for deferred, (remote, variables) in zip(self._deferred[-1], of_server, strict=True):
                value = tf.reshape(deferred.tensor, remote.shape)
                for v in variables:
                    v.assign(tf.cast(value, v.dtype))
        self._is_determined = False

    def is_needed_for(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Tells whether tensors depend on values that are not determined yet."""
        return not self._is_determined and depends_on(tensors, self._handles)

    def of_server(self, p: int) -> list[tf.Tensor]:
        """Returns the values that server `p` has to send, on it; none if they are determined."""
        return [] if self._is_determined else self._values[p]

    def determine(self, received: Sequence[Sequence[tf.Tensor]]) -> None:
        """Determines the values.

        Args:
            received: What each server has sent, on the worker, in one dimension each; nothing if
                the values are determined.
        """
        if self._is_determined:
            return
        for deferred, values in zip(self._deferred, received, strict=True):
            for each, value in zip(deferred, values, strict=True):
                each.determine(value)
        self._is_determined = True

    def request(self) -> None:
        """Determines the values by messages of their own, unless they are determined."""
        if self._is_determined:
            return
        self.determine(
            [
                link.to_worker(values) if values else []
                for link, values in zip(self._links, self._values, strict=True)
            ]
        )
