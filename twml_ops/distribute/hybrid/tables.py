"""Tables on servers: products there, of the ids that are sent there, and updates there."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute import placement
from twml_ops.distribute.hybrid import wire
from twml_ops.distribute.hybrid.remote import RemoteVariable
from twml_ops.distribute.partition import Entries
from twml_ops.ops._library import library


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
            shape = shard.shape[:1] if optimizer.rowwise_slots else shard.shape
            self.slots.append(
                [
                    RemoteVariable(f"{prefix}/{self.name}/{s}", shape, tf.float32, shard.device)
                    for s in optimizer.slot_names
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
        return shards[0] if len(shards) == 1 else joined(shards, self.by_row)

    def _shard_shape(self, p: int, count: int) -> tuple[int, int]:
        rows, columns = self.shape
        return (-(-(rows - p) // count), columns) if self.by_row else (rows, columns // count)


def joined(shards: Sequence[Any], by_row: bool) -> tf.Tensor:
    """The whole that the shards, [rows, ...] each, were cut from."""
    if not by_row:
        return tf.concat(shards, axis=1)
    count, rows = len(shards), sum(s.shape[0] for s in shards)
    order = tf.concat([tf.range(p, rows, count) for p in range(count)], axis=0)
    whole = tf.concat(shards, axis=0)
    return tf.gather(whole, tf.math.invert_permutation(order))


@dataclasses.dataclass
class Product:
    """One use of a table in a step.

    Attributes:
        table: which.
        parts: the entries that each server has got.
        output: [B, D], on the worker, watched by the step's tape.
        sent: the gradients of `output` that have been sent already, by server.
        binary: whether the entries have no values.
        gradient: [B, D] of the loss by `output`, once it is known.
    """

    table: RemoteTable
    parts: list[wire.Part]
    output: tf.Tensor
    sent: dict[int, tf.Tensor]
    binary: bool
    gradient: Any = None


class Remote(placement.Placement):
    """Tables divided over servers, which multiply; only ids and products travel.

    Args:
        prefix: of the names of all variables: one for a model in training.
        devices: of the servers.
        wire_dtype: of products and their gradients as they travel.
        deduplicate: whether to look for repeated ids.
    """

    divided = True

    def __init__(
        self, prefix: str, devices: Sequence[str], wire_dtype: tf.DType, deduplicate: bool
    ) -> None:
        self.prefix = prefix
        self.devices = list(devices)
        self.wire_dtype = tf.as_dtype(wire_dtype)
        self.deduplicate = deduplicate
        self.tables: list[RemoteTable] = []
        self._tape: Any = None
        self._products: list[Product] = []
        # (table, entries, rows, with values?) of products while tables are not there yet.
        self.entries: list[tuple[RemoteTable, Any, Any, bool]] = []

    def create(
        self, add: placement.Add, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """See `Placement`; nothing is made before the servers are known to be there."""
        del add
        with warnings.catch_warnings():  # Keras 2, of an initializer that is called twice
            warnings.simplefilter("ignore")
            initializer((1, 1))  # draws its seed in the order in which layers are built
        table = RemoteTable(f"{len(self.tables)}/{name}", shape, initializer, dtype)
        self.tables.append(table)
        placement.put(table, self)
        return table

    def read(self, variable: Any) -> tf.Tensor:
        """See `Placement`."""
        return variable.fetch()

    def assign(self, variable: Any, table: Any) -> None:
        """See `Placement`."""
        variable.assign(tf.convert_to_tensor(table))

    @contextlib.contextmanager
    def recording(self, tape: Any) -> Iterator[list[Product]]:
        """In the block, products are watched by `tape` and noted in the list given."""
        self._tape, self._products = tape, []
        try:
            yield self._products
        finally:
            self._tape = None

    def sparse_linear(self, entries: Entries, table: RemoteTable) -> tf.Tensor:
        """See `Placement`. All servers are asked at once."""
        ids, values, splits = entries
        if not table.shards:  # a model being built, or looked at
            rows = tf.shape(splits)[0] - 1
            self.entries.append((table, tf.size(ids), rows, values is not None))
            return tf.zeros(tf.stack([rows, table.shape[1]]))
        count = len(table.shards)
        parts, outputs = [], []
        sent: dict[int, tf.Tensor] = {}
        for p, shard in enumerate(table.shards):
            part = wire.send(
                entries, p, count, table.by_row, shard.shape[0], shard.device, self.deduplicate
            )
            parts.append(part)
            outputs.append(self._product(part, values, shard, p, sent))
        output = outputs[0]
        if count > 1:
            output = tf.add_n(outputs) if table.by_row else tf.concat(outputs, axis=1)
        if self._tape is not None:
            output = tf.identity(output)
            self._tape.watch(output)
            self._products.append(Product(table, parts, output, sent, values is None))
        return output

    def _product(
        self, part: wire.Part, values: Any, shard: RemoteVariable, p: int, sent: Any
    ) -> tf.Tensor:
        """The product with one shard: there, and brought here."""

        def forward(part: wire.Part) -> tf.Tensor:
            with tf.device(shard.device):
                product = library.twml_resource_sparse_linear(
                    part.ids, part.values, part.row_splits, shard.handle, binary=values is None
                )
                return wire.narrow(product, self.wire_dtype)

        def arrived(product: tf.Tensor) -> tf.Tensor:
            product.set_shape([None, shard.shape[1]])
            return tf.cast(product, tf.float32)

        if values is None:
            return tf.stop_gradient(arrived(forward(part)))

        @tf.custom_gradient
        def with_values(sent_values: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                sent[p] = self.send_gradient(upstream, shard)
                with tf.device(shard.device):
                    return library.twml_resource_sparse_linear_values_grad(
                        part.ids, part.row_splits, shard.handle, sent[p]
                    )

            return arrived(forward(part._replace(values=sent_values))), gradient

        return with_values(part.values)

    def send_part(self, product: Product, p: int) -> tf.Tensor:
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
        gradient = wire.narrow(gradient, self.wire_dtype)
        with tf.device(shard.device):
            return tf.cast(tf.identity(gradient), tf.float32)
