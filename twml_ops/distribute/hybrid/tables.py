"""Tables on servers: products there, of the ids that are sent there, and updates there."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.hybrid import wire
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.ops._library import library
from twml_ops.placement.entries import CsrEntries


class RemoteTable:
    """A table [N, D] of which each server has a shard: what a layer holds for its kernel.

    Args:
        name: "number/layer/weight", the same in all processes.
        shape: of the whole.
        initializer: of the whole.
        dtype: float32 or bfloat16.
    """

    def __init__(self, name: str, shape: Sequence[int], initializer: Any, dtype: Any) -> None:
        self.name = self._unique_id = name  # as Keras finds variables
        self.path = name.partition("/")[2]  # "layer/weight", as in a single process
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.initializer = initializer
        self.by_row = True
        self.shards: list[RemoteVariable] = []
        self.slots: list[list[RemoteVariable]] = []  # of each shard

    def create(self, prefix: str, devices: Sequence[str], by_row: bool) -> None:
        """Names the shards on the servers."""
        self.by_row = by_row
        self.shards = [
            RemoteVariable(
                f"{prefix}/{self.name}", self._shard_shape(p, len(devices)), self.dtype, d
            )
            for p, d in enumerate(devices)
        ]

    def create_slots(self, prefix: str, optimizer: Any) -> None:
        """Names an optimizer's variables beside each shard."""
        self.slots = []
        for shard in self.shards:
            self.slots.append(
                [
                    RemoteVariable(f"{prefix}/{self.name}/{s.name}", s.shape, s.dtype, shard.device)
                    for s in optimizer.update_rule.slots(shard.shape, shard.dtype)
                ]
            )

    def cut(self, whole: tf.Tensor, p: int) -> tf.Tensor:
        """What of `whole` shard `p` holds."""
        count = len(self.shards)
        return whole[p::count] if self.by_row else tf.split(whole, count, axis=1)[p]

    def initialize(self) -> None:
        """Gives it the values that the layer's initializer draws."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole = self.initializer(tuple(self.shape))
        self.assign(tf.cast(whole, self.dtype))

    def assign(self, whole: Any) -> None:
        """Makes `whole` the table."""
        for p, shard in enumerate(self.shards):
            shard.assign(self.cut(whole, p))

    def fetch(self) -> tf.Tensor:
        """The whole table, brought here."""
        shards = [s.fetch() for s in self.shards]
        return shards[0] if len(shards) == 1 else concat_shards(shards, self.by_row, self.shape[0])

    def _shard_shape(self, p: int, count: int) -> tuple[int, int]:
        rows, columns = self.shape
        return (-(-(rows - p) // count), columns) if self.by_row else (rows, columns // count)


def concat_shards(shards: Sequence[Any], by_row: bool, rows: int) -> tf.Tensor:
    """The whole, [rows, ...], that the shards were cut from."""
    if not by_row:
        return tf.concat(shards, axis=1)
    count = len(shards)
    order = tf.concat([tf.range(p, rows, count) for p in range(count)], axis=0)
    whole = tf.concat(shards, axis=0)
    return tf.gather(whole, tf.math.invert_permutation(order))


@dataclasses.dataclass
class TableProduct:
    """One use of a table in a step.

    Attributes:
        table: which.
        messages: what each server has got, there; none if it is this process.
        parts: the entries in them.
        output: [B, D], on the worker, watched by the step's tape.
        sent: the gradients of `output` that have been sent already, by server.
        binary: whether the entries have no values.
        entries: what the messages were made of; None in a later step.
        gradient: [B, D] of the loss by `output`, once it is known.
    """

    table: RemoteTable
    messages: list[tf.Tensor]
    parts: list[wire.ShardEntries]
    output: Any
    sent: dict[int, tf.Tensor]
    binary: bool
    entries: CsrEntries | None = None
    gradient: Any = None

    def on_servers(self) -> list[tuple[tuple[int, str], tf.Tensor]]:
        """What a later step needs of it: ((number, device), tensor)."""
        if not self.messages:
            return [((i, self.table.shards[0].device), t) for i, t in enumerate(self.parts[0])]
        return [
            ((p, s.device), m)
            for p, (s, m) in enumerate(zip(self.table.shards, self.messages, strict=True))
        ]


class ParameterServerPlacement(placement.Placement):
    """Tables divided over servers, which multiply; only ids and products travel.

    Args:
        prefix: of the names of all variables: one for a model in training.
        devices: of the servers.
        wire_dtype: of products and their gradients as they travel.
        deduplicate: whether to look for repeated ids.
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
        self._here = len(self.devices) == 1 and self.devices[0].startswith("/job:localhost")
        self._tape: Any = None
        self._recorded: list[TableProduct] | None = None
        self._waiting: Iterator[TableProduct] | None = None
        # (table, entries, rows, with values?) of products while tables are not there yet.
        self.entries: list[tuple[RemoteTable, Any, Any, bool]] = []

    def create(
        self,
        add: placement.AddWeight,
        shape: Sequence[int],
        initializer: Any,
        name: str,
        dtype: Any,
    ) -> Any:
        """See `Placement`; nothing is made before the servers are known to be there."""
        del add
        with warnings.catch_warnings():  # Keras 2, of an initializer that is called twice
            warnings.simplefilter("ignore")
            initializer((1, 1))  # draws its seed in the order in which layers are built
        table = RemoteTable(f"{len(self.tables)}/{name}", shape, initializer, dtype)
        self.tables.append(table)
        placement.set_placement(table, self)
        return table

    def read(self, variable: Any) -> tf.Tensor:
        """See `Placement`."""
        return variable.fetch()

    def assign(self, variable: Any, table: Any) -> None:
        """See `Placement`."""
        variable.assign(tf.convert_to_tensor(table))

    @contextlib.contextmanager
    def recording(
        self, tape: Any = None, waiting: Sequence[TableProduct] | None = None
    ) -> Iterator[list[TableProduct]]:
        """In the block, products are watched by `tape`, if any, and noted in the list given.

        Args:
            tape: of the step.
            waiting: products that are there already, in the order in which they are asked for.
        """
        self._tape, self._recorded = tape, []
        self._waiting = None if waiting is None else iter(waiting)
        try:
            yield self._recorded
        finally:
            self._tape = self._recorded = self._waiting = None

    def sparse_linear(self, entries: CsrEntries, table: RemoteTable) -> tf.Tensor:
        """See `Placement`. All servers are asked at once."""
        ids, values, splits = entries
        if not table.shards:  # a model being built, or looked at
            rows = tf.shape(splits)[0] - 1
            self.entries.append((table, tf.size(ids), rows, values is not None))
            return tf.zeros(tf.stack([rows, table.shape[1]]))
        if self._waiting is not None:
            product = next(self._waiting)
        else:
            product = self._multiplied(entries, table)
        if self._recorded is not None:
            product.output = tf.identity(product.output)
            if self._tape is not None:
                self._tape.watch(product.output)
            self._recorded.append(product)
        return product.output

    def _multiplied(self, entries: CsrEntries, table: RemoteTable) -> TableProduct:
        ids, values, _ = entries
        devices = [shard.device for shard in table.shards]
        sent: dict[int, tf.Tensor] = {}
        if self._here:
            parts, messages = [wire.ShardEntries(*_with_values(entries))], []
        else:
            whole = table.shape[0]
            messages = wire.send_entries(entries, table.by_row, whole, devices, self.deduplicate)
            parts = self._received(table, messages)

        def forward() -> tf.Tensor:
            return self._combined(
                [
                    self._product(*of, values is None)
                    for of in zip(parts, table.shards, strict=True)
                ],
                table,
            )

        if values is None:
            output = tf.stop_gradient(forward())
            return TableProduct(table, messages, parts, output, sent, True, entries)

        @tf.custom_gradient
        def with_values(values: tf.Tensor) -> Any:
            del values  # they are in the message

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                product = TableProduct(table, messages, parts, None, sent, False, entries, upstream)
                found = []
                for p, (part, shard) in enumerate(zip(parts, table.shards, strict=True)):
                    upstream_there = self.send_part(product, p)
                    with tf.device(shard.device):
                        found.append(
                            library.twml_resource_sparse_linear_values_grad(
                                part.ids, part.row_splits, shard.handle, upstream_there
                            )
                        )
                if len(found) == 1:
                    return tf.identity(found[0])
                if not table.by_row:
                    return tf.add_n(found)
                of_server = tf.cast(ids % len(found), tf.int32)
                places = tf.dynamic_partition(tf.range(tf.size(ids)), of_server, len(found))
                return tf.dynamic_stitch(places, found)

            return forward(), gradient

        return TableProduct(table, messages, parts, with_values(values), sent, False, entries)

    def arrived(
        self, table: RemoteTable, messages: Sequence[tf.Tensor], output: tf.Tensor, binary: bool
    ) -> TableProduct:
        """A product that an earlier step has asked for."""
        parts = [wire.ShardEntries(*messages)] if self._here else self._received(table, messages)
        return TableProduct(table, list(messages), parts, output, {}, binary, None)

    def _received(
        self, table: RemoteTable, messages: Sequence[tf.Tensor]
    ) -> list[wire.ShardEntries]:
        parts = []
        for message, shard in zip(messages, table.shards, strict=True):
            with tf.device(shard.device):
                parts.append(wire.receive_entries(message, shard.shape[0]))
        return parts

    def _product(self, part: wire.ShardEntries, shard: RemoteVariable, binary: bool) -> tf.Tensor:
        """The product with one shard: there, as it travels."""
        with tf.device(shard.device):
            product = library.twml_resource_sparse_linear(
                part.ids, part.values, part.row_splits, shard.handle, binary=binary
            )
            return wire.cast_for_wire(product, self.wire_dtype)

    def _combined(self, products: Sequence[tf.Tensor], table: RemoteTable) -> tf.Tensor:
        """[B, D], here, of what comes from the servers."""
        outputs = []
        for product, shard in zip(products, table.shards, strict=True):
            product.set_shape([None, shard.shape[1]])
            outputs.append(tf.cast(product, tf.float32))
        if len(outputs) == 1:
            return outputs[0]
        return tf.add_n(outputs) if table.by_row else tf.concat(outputs, axis=1)

    def send_part(self, product: TableProduct, p: int) -> tf.Tensor:
        """What of a product's gradient server `p` needs, there."""
        if p not in product.sent:
            shards = product.table.shards
            gradient = product.gradient
            if not product.table.by_row:
                gradient = tf.split(gradient, len(shards), axis=1)[p]
            product.sent[p] = self.send_gradient(gradient, shards[p])
        return product.sent[p]

    def send_gradient(self, gradient: tf.Tensor, shard: RemoteVariable) -> tf.Tensor:
        """`gradient` [B, columns], float32 on the shard's server."""
        gradient = wire.cast_for_wire(gradient, self.wire_dtype)
        with tf.device(shard.device):
            return tf.cast(tf.identity(gradient), tf.float32)


def _with_values(entries: CsrEntries) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    ids, values, splits = entries
    return ids, tf.zeros([0]) if values is None else values, splits
