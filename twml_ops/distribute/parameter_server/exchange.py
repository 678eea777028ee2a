"""Which messages a step sends: between a worker and each server, for all tables together.

The call of a layer adds a product and returns a tensor, whose value is determined later. When all
products of a step have been added, there are these messages with each server that has a part of
their tables:

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
from functools import partial
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.parameter_server import encoding, row_classes
from twml_ops.distribute.parameter_server.products import DeferredTensor, TableProduct, depends_on
from twml_ops.distribute.parameter_server.tables import RemoteVariable
from twml_ops.distribute.parameter_server.transport import Link


class Exchange:
    """Products of a step that do not depend on one another, and their messages.

    Args:
        links: The way to each server.
        wire: The types in which products and their gradients are sent.
        deduplicate: Whether an id that occurs several times is sent once if that is smaller.
        in_process: Whether the tables are in this process, so that nothing is sent.
        values: Values that the servers send with the products, unless they are determined before;
            None: there are none.
        in_classes: Whether products are added in classes of rows; see `row_classes`.

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
        in_classes: bool = False,
    ) -> None:
        self._in_classes = in_classes
        self._links, self._wire = links, wire
        self._deduplicate, self._in_process = deduplicate, in_process
        self._values = values
        self.products: list[TableProduct] = []

    def add(self, product: TableProduct) -> tf.Tensor:
        """Adds a product, which `multiply` computes.

        Args:
            product: The product.

        Returns:
            float32 [B, D], or [B, C] of a module, on the worker.
        """
        self.products.append(product)
        columns = product.table.shape[1] if product.module is None else product.columns_of(0)
        product.result = DeferredTensor([None, columns])
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
        """Sends the entries of all products and returns the products, or outputs of modules."""
        self._send_entries()
        found: dict[tuple[TableProduct, int], tf.Tensor] = {}
        received = [self._multiply_on(p, found) for p in range(len(self._links))]
        if self._values is not None:
            self._values.determine(received)
        return [
            product.table.division.join(
                [found[product, i] for i in range(len(product.table.shards))],
                row_classes.add_halves if self._in_classes else tf.add_n,
            )
            for product in self.products
        ]

    def uses(self, server: int) -> bool:
        """Tells whether a server gets gradients: a product has one, and a part on the server."""
        return any(p.gradient is not None and p.part_on(server) is not None for p in self.products)

    def _send_entries(self) -> None:
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
        # For each server, the number of the rows of its part, by batch and part of the rows.
        wanted: list[dict[tuple[Any, int], int]] = [{} for _ in self._links]
        keys = []
        for product in self.products:
            assert product.entries is not None
            division, entries, rows = (
                product.table.division,
                product.entries,
                product.table.shape[0],
            )
            key = (*(None if t is None else t.ref() for t in entries), division.row_parts, rows)
            if key not in packed:
                packed[key] = ops.pack_entries(
                    *entries, rows, parts=division.row_parts, deduplicate=deduplicate
                )
            keys.append([(key, division.row_part(i)) for i in range(len(division.servers))])
            for each, shard, p in zip(
                keys[-1], product.table.shards, division.servers, strict=True
            ):
                wanted[p][each] = shard.shape[0]
        sent = [self._send_entries_to(p, packed, wanted[p]) for p in range(len(self._links))]
        for product, of_parts in zip(self.products, keys, strict=True):
            servers = product.table.division.servers
            found = [sent[p][each] for each, p in zip(of_parts, servers, strict=True)]
            product.messages = [message for message, _ in found]
            product.shard_entries = [entries for _, entries in found]

    def _send_entries_to(
        self, p: int, packed: dict[Any, list[tf.Tensor]], wanted: dict[tuple[Any, int], int]
    ) -> dict[tuple[Any, int], tuple[tf.Tensor, encoding.ShardEntries]]:
        """Sends entries to one server, and returns the messages and the entries on it."""
        if not wanted:
            return {}
        link, sent = self._links[p], {}
        begun = [x for x in self.products if x.new_rows is not None and x.part_on(p) is not None]
        tensors = [*(packed[key][part] for key, part in wanted), *(x.new_rows for x in begun)]
        messages = link.to_server(tensors)
        for product, rows in zip(begun, messages[len(wanted) :], strict=True):
            part = product.part_on(p)
            assert part is not None
            product.lookups[part] = product.table.lookup.begin_rows(part, rows)
        for (each, num_rows), message in zip(wanted.items(), messages, strict=False):
            with tf.device(link.server):
                sent[each] = message, encoding.decode_entries(message, num_rows)
        return sent

    def _multiply_on(
        self, p: int, found: dict[tuple[TableProduct, int], tf.Tensor]
    ) -> list[tf.Tensor]:
        """Adds the products with the parts on a server, float32 on the worker; returns values."""
        on_server = self._parts_on(p, self.products)
        products = []
        with tf.device(self._links[p].server):
            for each, i in on_server:
                shard, binary = each.table.shards[i], each.binary
                product = row_classes.multiply(
                    partial(shard.multiply, binary=binary),
                    each.shard_entries[i],
                    binary,
                    shard.shape[1],
                    row_classes.ROW_CLASSES // each.table.division.row_parts
                    if self._in_classes
                    else 1,
                )
                output = each.output_on_server(product)
                products += encoding.encode_rows(output, self._wire.products)
        tensors = [*products, *([] if self._values is None else self._values.of_server(p))]
        received = iter(self._links[p].to_worker(tensors) if tensors else [])
        for each, i in on_server:
            columns = each.columns_of(i)
            found[each, i] = encoding.decode_rows(received, columns, self._wire.products)
        return list(received)

    def _parts_on(self, p: int, products: Sequence[TableProduct]) -> list[tuple[TableProduct, int]]:
        """Returns the products with a table that has a part on a server, and the part."""
        found = [(product, product.part_on(p)) for product in products]
        return [(product, part) for product, part in found if part is not None]

    def send_gradients(
        self,
        others: Sequence[Sequence[tf.Tensor]] | None = None,
        random_bits: Iterator[encoding.RandomBits] | None = None,
    ) -> list[list[tf.Tensor]]:
        """Sends the gradients of the products, and determines the gradients of values.

        Args:
            others: For each server, tensors that the updates on it need; None: there are none. They
                are sent to a server without parts of the tables, too.
            random_bits: Others for each gradient and each step, with which int8 gradients are
                rounded; None: to the nearest.

        Returns:
            For each server, `others` on that server, in one dimension each; nothing if there are no
            gradients.
        """
        used = [p for p in self.products if p.gradient is not None]
        others = [[] for _ in self._links] if others is None else others
        if not used and not any(others):
            return []
        received = []
        by_part = {p: p.table.division.columns_by_part(p.gradient) for p in used}
        for product in used:
            product.sent_gradients = list(by_part[product])  # replaced on the servers
        for p, link in enumerate(self._links):
            dtype, on_server = self._wire.gradients, self._parts_on(p, used)
            gradients = []
            for product, i in on_server:
                bits = None if random_bits is None else next(random_bits)
                gradients += encoding.encode_rows(by_part[product][i], dtype, bits)
            tensors = [*gradients, *others[p]]
            sent = iter(link.to_server(tensors) if tensors else [])
            for product, i in on_server:
                with tf.device(link.server):
                    upstream = encoding.decode_rows(sent, product.columns_of(i), dtype)
                    product.sent_gradients[i] = product.gradient_on_server(upstream)
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
        positions: dict[Any, list[tf.Tensor]] = {}  # the same for tables with the same batch
        keys = []
        for each in wanted:
            assert each.entries is not None
            keys.append((each.entries[0].ref(), each.table.division.row_parts))
            if keys[-1] not in positions:
                positions[keys[-1]] = _positions_by_rows(each)
        found: dict[tuple[TableProduct, int], tf.Tensor] = {}
        for p, link in enumerate(self._links):
            on_server = self._parts_on(p, wanted)
            with tf.device(link.server):
                computed = [
                    each.table.shards[i].values_gradient(
                        each.shard_entries[i], each.sent_gradients[i]
                    )
                    for each, i in on_server
                ]
            received = link.to_worker(computed) if computed else []
            found |= dict(zip(on_server, received, strict=True))
        return [
            each.table.division.merge_entries(
                positions[key], [found[each, i] for i in range(len(each.table.shards))]
            )
            for each, key in zip(wanted, keys, strict=True)
        ]


def _positions_by_rows(product: TableProduct) -> list[tf.Tensor]:
    """Returns the positions in the batch of the entries of each part of the rows."""
    assert product.entries is not None
    ids, count = product.entries[0], product.table.division.row_parts
    positions = tf.range(tf.size(ids))
    if count == 1:
        return [positions]
    return tf.dynamic_partition(positions, tf.cast(ids % count, tf.int32), count)


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
        self._by_name: dict[str, tf.Tensor] = {}
        for link in links:
            of_server = [(r, variables) for r, variables in pairs if r.device == link.server]
            self._values.append([remote.value() for remote, _ in of_server])
            self._deferred.append([DeferredTensor([None], r.dtype) for r, _ in of_server])
            for deferred, (remote, variables) in zip(self._deferred[-1], of_server, strict=True):
                value = self._by_name[remote.name] = tf.reshape(deferred.tensor, remote.shape)
                for v in variables:
                    v.assign(tf.cast(value, v.dtype))
        self._is_determined = False

    def is_needed_for(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Tells whether tensors depend on values that are not determined yet."""
        return not self._is_determined and depends_on(tensors, self._handles)

    def value_of(self, remote: RemoteVariable) -> tf.Tensor:
        """Returns the value of a variable on a server when the step begins, on the worker."""
        return self._by_name[remote.name]

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
