"""The placement of tables on parameter servers, which multiply the entries that they are sent."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.hybrid import wire
from twml_ops.distribute.hybrid.remote_table import RemoteTable
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.ops._library import library
from twml_ops.placement.entries import CsrEntries


@dataclasses.dataclass
class TableProduct:
    """The product of one batch with one table, which a step uses once.

    Attributes:
        table: The table.
        messages: For each server, the message that it was sent; none if the table is in this
            process.
        shard_entries: For each server, the entries in its message.
        output: float32 [B, D], on the worker, watched by the gradient tape of the step.
        sent_gradients: Server -> the gradient of `output` that it was sent already.
        binary: Whether the entries have no values.
        entries: The batch that the messages were made of; None for a prefetched product.
        gradient: [B, D], the gradient of the loss with respect to `output`, once it is known.
    """

    table: RemoteTable
    messages: list[tf.Tensor]
    shard_entries: list[wire.ShardEntries]
    output: Any
    sent_gradients: dict[int, tf.Tensor]
    binary: bool
    entries: CsrEntries | None = None
    gradient: Any = None

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


@dataclasses.dataclass
class BatchSize:
    """The size of the batch that a table was multiplied with while the model was built.

    Attributes:
        table: The table.
        num_entries: K, an integer scalar tensor.
        num_rows: B, an integer scalar tensor.
        has_values: Whether the entries have values.
    """

    table: RemoteTable
    num_entries: Any
    num_rows: Any
    has_values: bool


class ParameterServerPlacement(placement.Placement):
    """Tables are sharded over servers, which multiply. Only entries and products are sent.

    Args:
        prefix: Prefix of the names of all variables, one for each model in training.
        devices: The devices of the servers.
        wire_dtype: The type in which products and their gradients are sent.
        deduplicate: Whether an id that occurs several times is sent once if that is smaller.

    Attributes:
        tables: The tables, in the order in which layers have created them.
        batch_sizes: The products that were asked for before the tables were on servers.
    """

    is_sharded = True

    def __init__(
        self, prefix: str, devices: Sequence[str], wire_dtype: tf.DType, deduplicate: bool
    ) -> None:
        self.prefix = prefix
        self.devices = list(devices)
        self.wire_dtype = tf.as_dtype(wire_dtype)
        self.deduplicate = deduplicate
        self.tables: list[RemoteTable] = []
        self.batch_sizes: list[BatchSize] = []
        self._in_process = len(self.devices) == 1 and self.devices[0].startswith("/job:localhost")
        self._tape: Any = None
        self._recorded: list[TableProduct] | None = None
        self._prefetched: Iterator[TableProduct] | None = None

    def create(
        self,
        add: placement.AddWeight,
        shape: Sequence[int],
        initializer: Any,
        name: str,
        dtype: Any,
    ) -> Any:
        """See `Placement.create`. The shards are created later, by `RemoteTable.create`."""
        del add
        with warnings.catch_warnings():  # Keras 2 warns of an initializer that is called twice
            warnings.simplefilter("ignore")
            initializer((1, 1))  # draws its seed in the order in which layers are built
        table = RemoteTable(f"{len(self.tables)}/{name}", shape, initializer, dtype)
        self.tables.append(table)
        placement.set_placement(table, self)
        return table

    def read(self, variable: Any) -> tf.Tensor:
        """See `Placement.read`."""
        return variable.fetch()

    def assign(self, variable: Any, table: Any) -> None:
        """See `Placement.assign`."""
        variable.assign(tf.convert_to_tensor(table))

    @contextlib.contextmanager
    def recording(
        self, tape: Any = None, prefetched: Sequence[TableProduct] | None = None
    ) -> Iterator[list[TableProduct]]:
        """Records the products that are computed in the `with` block.

        Args:
            tape: The gradient tape of the step, which watches the products; None: there is none.
            prefetched: Products to use instead of new ones, in the order in which the model asks
                for them; None: all products are computed.

        Yields:
            The list to which the products are added.
        """
        self._tape, self._recorded = tape, []
        self._prefetched = None if prefetched is None else iter(prefetched)
        try:
            yield self._recorded
        finally:
            self._tape = self._recorded = self._prefetched = None

    def sparse_linear(self, entries: CsrEntries, table: RemoteTable) -> tf.Tensor:
        """See `Placement.sparse_linear`. All servers multiply at the same time."""
        ids, values, splits = entries
        if not table.shards:  # the model is being built, or its shapes are inferred
            num_rows = tf.shape(splits)[0] - 1
            self.batch_sizes.append(BatchSize(table, tf.size(ids), num_rows, values is not None))
            return tf.zeros(tf.stack([num_rows, table.shape[1]]))
        if self._prefetched is not None:
            product = next(self._prefetched)
        else:
            product = self._multiply(entries, table)
        if self._recorded is not None:
            product.output = tf.identity(product.output)
            if self._tape is not None:
                self._tape.watch(product.output)
            self._recorded.append(product)
        return product.output

    def _multiply(self, entries: CsrEntries, table: RemoteTable) -> TableProduct:
        ids, values, _ = entries
        devices = [shard.device for shard in table.shards]
        sent_gradients: dict[int, tf.Tensor] = {}
        if self._in_process:
            shard_entries, messages = [wire.ShardEntries(*_with_values(entries))], []
        else:
            messages = wire.send_entries(
                entries, table.by_row, table.shape[0], devices, self.deduplicate
            )
            shard_entries = self._unpack(table, messages)

        def forward() -> tf.Tensor:
            products = [
                self._multiply_shard(e, shard, values is None)
                for e, shard in zip(shard_entries, table.shards, strict=True)
            ]
            return self._combine(products, table)

        def make(output: Any, gradient: Any = None) -> TableProduct:
            binary = values is None
            return TableProduct(
                table, messages, shard_entries, output, sent_gradients, binary, entries, gradient
            )

        if values is None:
            return make(tf.stop_gradient(forward()))

        @tf.custom_gradient
        def multiply_values(values: tf.Tensor) -> Any:
            del values  # they are in the message

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                product = make(None, upstream)
                by_server = []
                for p, (e, shard) in enumerate(zip(shard_entries, table.shards, strict=True)):
                    upstream_shard = self.send_gradient_shard(product, p)
                    with tf.device(shard.device):
                        by_server.append(
                            library.twml_resource_sparse_linear_values_grad(
                                e.ids, e.row_splits, shard.handle, upstream_shard
                            )
                        )
                if len(by_server) == 1:
                    return tf.identity(by_server[0])
                if not table.by_row:
                    return tf.add_n(by_server)
                server_of_entry = tf.cast(ids % len(by_server), tf.int32)
                positions = tf.range(tf.size(ids))
                positions = tf.dynamic_partition(positions, server_of_entry, len(by_server))
                return tf.dynamic_stitch(positions, by_server)

            return forward(), gradient

        return make(multiply_values(values))

    def restore_product(
        self, table: RemoteTable, stored: Sequence[tf.Tensor], output: tf.Tensor, binary: bool
    ) -> TableProduct:
        """Returns a product that an earlier step has prefetched.

        Args:
            table: The table.
            stored: The tensors of `TableProduct.tensors_to_store`.
            output: float32 [B, D].
            binary: Whether the entries have no values.

        Returns:
            The product, without the batch's entries.
        """
        if self._in_process:
            shard_entries = [wire.ShardEntries(*stored)]
        else:
            shard_entries = self._unpack(table, stored)
        return TableProduct(table, list(stored), shard_entries, output, {}, binary, None)

    def _unpack(self, table: RemoteTable, messages: Sequence[tf.Tensor]) -> list[wire.ShardEntries]:
        shard_entries = []
        for message, shard in zip(messages, table.shards, strict=True):
            with tf.device(shard.device):
                shard_entries.append(wire.receive_entries(message, shard.shape[0]))
        return shard_entries

    def _multiply_shard(
        self, entries: wire.ShardEntries, shard: RemoteVariable, binary: bool
    ) -> tf.Tensor:
        """Returns the product with one shard, on its server, in the type in which it is sent."""
        with tf.device(shard.device):
            product = library.twml_resource_sparse_linear(
                entries.ids, entries.values, entries.row_splits, shard.handle, binary=binary
            )
            return wire.cast_for_wire(product, self.wire_dtype)

    def _combine(self, products: Sequence[tf.Tensor], table: RemoteTable) -> tf.Tensor:
        """Returns [B, D] on the worker, from the products of the servers."""
        outputs = []
        for product, shard in zip(products, table.shards, strict=True):
            product.set_shape([None, shard.shape[1]])
            outputs.append(tf.cast(product, tf.float32))
        if len(outputs) == 1:
            return outputs[0]
        return tf.add_n(outputs) if table.by_row else tf.concat(outputs, axis=1)

    def send_gradient_shard(self, product: TableProduct, p: int) -> tf.Tensor:
        """Sends server `p` the part of a product's gradient that it needs, once.

        Args:
            product: A product whose gradient is known.
            p: The number of the server.

        Returns:
            float32 [B, D], or [B, D / P] if the table is sharded by column, on the server.
        """
        if p not in product.sent_gradients:
            shards = product.table.shards
            gradient = product.gradient
            if not product.table.by_row:
                gradient = tf.split(gradient, len(shards), axis=1)[p]
            gradient = wire.cast_for_wire(gradient, self.wire_dtype)
            with tf.device(shards[p].device):
                product.sent_gradients[p] = tf.cast(tf.identity(gradient), tf.float32)
        return product.sent_gradients[p]


def _with_values(entries: CsrEntries) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    ids, values, splits = entries
    return ids, tf.zeros([0]) if values is None else values, splits
