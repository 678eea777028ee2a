"""The products of batches with tables, in the graph of a step.

A layer asks for a product before the step knows its value: `TableProduct.result` is a
`DeferredTensor`, which `exchange` determines. The batches of several steps with one exchange are
joined, so that the servers multiply them as one batch (`join_products`). A pipeline computes the
products of the next batches one exchange ahead: their entries stay on the servers
(`StoredProducts`), and `check_only_read` checks that the step does not change what they depend on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.parameter_server import encoding
from twml_ops.distribute.parameter_server.modules import ModuleCall
from twml_ops.distribute.parameter_server.tables import RemoteTable, RemoteVariable
from twml_ops.placement import ProductModule
from twml_ops.placement.entries import CsrEntries

_READS = ("ReadVariableOp", "ResourceGather", "VariableShape")


class DeferredTensor:
    """A tensor in the graph that is being built, whose value is another tensor of that graph.

    Args:
        shape: Its shape; a dimension that is None may have any size.
        dtype: Its type.

    Attributes:
        tensor: The tensor. It must not be used in another graph, and must have a value when the
            graph is complete.
    """

    def __init__(self, shape: Sequence[int | None], dtype: Any = tf.float32) -> None:
        # The placeholder is not used any more once there is a value, and TensorFlow removes it.
        self.tensor = tf.identity(tf.raw_ops.Placeholder(dtype=dtype, shape=shape))

    def determine(self, value: tf.Tensor) -> None:
        """Determines the value, which must not depend on this tensor."""
        self.tensor.op._update_input(0, value)


def depends_on(tensors: Sequence[tf.Tensor], sources: Sequence[tf.Tensor]) -> bool:
    """Whether tensors depend on other ones.

    Args:
        tensors: Tensors of the graph.
        sources: Tensors of the graph, such as deferred tensors or handles of variables.

    Returns:
        Whether an op that computes one of the tensors is the op of one of the sources.
    """
    wanted = {id(t.op) for t in sources}
    if not wanted:
        return False
    pending: list[Any] = [t.op for t in tensors]
    visited: set[Any] = set()
    while pending:
        op = pending.pop()
        if op in visited:
            continue
        if id(op) in wanted:
            return True
        visited.add(op)
        pending += [*(t.op for t in op.inputs), *op.control_inputs]
    return False


@dataclasses.dataclass(eq=False)
class TableProduct:
    """The product of a batch with one table, which a step uses once.

    The batch may consist of several batches; see `join_products`.

    Attributes:
        table: The table.
        binary: Whether the entries have no values.
        entries: The batch; None for a prefetched product.
        new_rows: int64 [E], the rows of the table that got a new id, which begin anew before the
            product is computed, as `RemoteLookup.find` returns them; None: there are none.
        module: What the server of the table makes of the product and sends in its place; None:
            nothing.
        lookups: For each part of the table that has been sent new rows, what
            `RemoteLookup.begin_rows` has returned.
        messages: For each part of the table, the message with the entries, on its server; none if
            the table is in this process.
        shard_entries: For each part of the table, the entries in its message.
        batches: For a joined batch, the products of its batches, whose outputs, results and
            gradients are used instead of its own.
        result: The product before `Exchange.determine_products` determines it; None if it is not
            needed.
        output: float32 [B, D], or [B, C] of a module, on the worker, watched by the gradient tape
            of the step; None for a joined batch.
        gradient: [B, D] or [B, C], the gradient of the loss with respect to `output`, once it is
            known.
        sent_gradients: For each part of the table, the gradient that its server was sent, float32
            [B, columns of the part].
        module_call: The module and the product on the server.
        weights_gradients: The gradients of the weights of the module, on the server.
        values_gradient: [K], the gradient of the loss with respect to the values, if a layer needs
            it.
    """

    table: RemoteTable
    binary: bool
    entries: CsrEntries | None = None
    new_rows: tf.Tensor | None = None
    module: ProductModule | None = None
    lookups: dict[int, tf.Tensor | None] = dataclasses.field(default_factory=dict)
    messages: list[tf.Tensor] = dataclasses.field(default_factory=list)
    shard_entries: list[encoding.ShardEntries] = dataclasses.field(default_factory=list)
    batches: list[TableProduct] = dataclasses.field(default_factory=list)
    result: DeferredTensor | None = None
    output: Any = None
    gradient: Any = None
    sent_gradients: list[tf.Tensor] = dataclasses.field(default_factory=list)
    module_call: ModuleCall | None = None
    weights_gradients: list[tf.Tensor] = dataclasses.field(default_factory=list)
    values_gradient: DeferredTensor | None = None

    @property
    def by_batch(self) -> list[TableProduct]:
        """The product of each batch: one of `batches` each, or this product itself."""
        return self.batches or [self]

    def part_on(self, server: int) -> int | None:
        """Returns the number of the part of the table on a server; None if it has none."""
        return self.table.division.part_on(server)

    def columns_of(self, part: int) -> int:
        """Returns the width of what the server of a part of the table sends."""
        if self.module is not None:
            columns: int = self.table.module.columns
            return columns
        return int(self.table.shards[part].shape[1])

    def output_on_server(self, product: tf.Tensor) -> tf.Tensor:
        """Returns the product itself, or the output of the module, on the current device."""
        if self.module is None:
            return product
        self.module_call = self.table.module.call(self.module, product)
        return self.module_call.output

    def gradient_on_server(self, upstream: tf.Tensor) -> tf.Tensor:
        """Returns the gradient of the product with a part, on the current device.

        Args:
            upstream: The gradient of what `output_on_server` has returned.
        """
        if self.module_call is None:
            return upstream
        gradient, *self.weights_gradients = self.module_call.gradients(upstream)
        return gradient

    def split(self, value: tf.Tensor) -> list[tf.Tensor]:
        """Splits a tensor with a row for each example into one tensor for each batch."""
        return self._split(value, lambda entries: encoding.num_rows(entries[2]))

    def split_entries(self, value: tf.Tensor) -> list[tf.Tensor]:
        """Splits a tensor with a number for each entry into one tensor for each batch."""
        return self._split(value, lambda entries: tf.size(entries[0]))

    def _split(self, value: tf.Tensor, size_of: Callable[[CsrEntries], Any]) -> list[tf.Tensor]:
        if not self.batches:
            return [value]
        sizes = [size_of(each.entries) for each in self.batches if each.entries is not None]
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


def join_products(products: Sequence[TableProduct], batches: int) -> list[TableProduct]:
    """Joins the products of several batches, so that each use of a table has one.

    Args:
        products: The products of the batches, one batch after the other, all of the same model.
        batches: The number of batches.

    Returns:
        The products with the examples of all batches; products of a single batch unchanged.
    """
    if batches == 1:
        return list(products)
    uses = len(products) // batches
    joined: dict[tuple[int, ...], CsrEntries] = {}  # tables with the same batch share entries
    found = []
    for use in range(uses):
        by_batch = list(products[use::uses])
        entries = [each.entries for each in by_batch if each.entries is not None]
        key = tuple(id(t) for each in entries for t in each)
        if key not in joined:
            joined[key] = _join_batches(entries)
        table, binary = by_batch[0].table, by_batch[0].binary
        found.append(TableProduct(table, binary, joined[key], batches=by_batch))
    return found


def join_gradients(products: Sequence[TableProduct]) -> None:
    """Sets the gradients of joined products from the gradients of the products of their batches.

    Args:
        products: Products of `join_products`.
    """
    for product in products:
        gradients = [each.gradient for each in product.batches if each.gradient is not None]
        product.gradient = tf.concat(gradients, axis=0) if gradients else None


def _join_batches(batches: Sequence[CsrEntries]) -> CsrEntries:
    none = tf.zeros([0])
    whole = [(ids, none if v is None else v, splits) for ids, v, splits in batches]
    ids, values, row_splits, _ = ops.join_batches(whole)
    return ids, None if batches[0][1] is None else values, row_splits


class StoredProducts:
    """The products that a step computes for a later one. Used in the graph of a step.

    As results of a function, the messages with the entries would be sent to the worker and back.
    They are therefore stored in variables of the servers.

    Args:
        prefix: Prefix of the names of the variables, which only this worker uses.
        in_process: Whether the tables are in this process, so that there are no messages.
    """

    def __init__(self, prefix: str, in_process: bool) -> None:
        self._prefix, self._in_process = prefix, in_process
        self._uses: list[tuple[RemoteTable, bool, list[RemoteVariable]]] = []
        self._variables: dict[str, RemoteVariable] = {}

    def store(self, products: Sequence[TableProduct]) -> list[list[tf.Tensor]]:
        """Stores the entries of products.

        Args:
            products: The products of the next batches.

        Returns:
            The values of each product, [B, D] of each batch.
        """
        self._uses = [
            (p.table, p.binary, [self._assign(use, *t) for t in p.tensors_to_store()])
            for use, p in enumerate(products)
        ]
        return [[each.output for each in p.by_batch] for p in products]

    def restore(self, values: Sequence[Sequence[tf.Tensor]]) -> list[TableProduct]:
        """Returns the products that have been stored.

        Args:
            values: What `store` has returned.
        """
        return [
            self._restore(table, [v.value() for v in variables], outputs, binary)
            for (table, binary, variables), outputs in zip(self._uses, values, strict=True)
        ]

    def _assign(self, use: int, place: tuple[int, str], tensor: tf.Tensor) -> RemoteVariable:
        number, device = place
        name = f"{self._prefix}/{use}/{number}"
        # TensorFlow orders reads and writes of a variable by its handle, so there must be only one.
        variable = self._variables.get(name)
        if variable is None:
            variable = self._variables[name] = RemoteVariable(name, [None], tensor.dtype, device)
        variable.assign(tensor)
        return variable

    def _restore(
        self,
        table: RemoteTable,
        stored: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
        binary: bool,
    ) -> TableProduct:
        """Returns a product without the batch's entries.

        Args:
            table: The table.
            stored: The tensors of `TableProduct.tensors_to_store`.
            outputs: float32 [B, D] of each batch.
            binary: Whether the entries have no values.
        """
        if self._in_process:
            shard_entries, messages = [encoding.ShardEntries(*stored)], []
        else:
            shard_entries, messages = _decode_messages(table, stored), list(stored)
        product = TableProduct(table, binary, messages=messages, shard_entries=shard_entries)
        if len(outputs) > 1:
            product.batches = [TableProduct(table, binary, output=output) for output in outputs]
        else:
            product.output = outputs[0]
        return product


def _decode_messages(
    table: RemoteTable, messages: Sequence[tf.Tensor]
) -> list[encoding.ShardEntries]:
    shard_entries = []
    for message, shard in zip(messages, table.shards, strict=True):
        with tf.device(shard.device):
            shard_entries.append(encoding.decode_entries(message, shard.shape[0]))
    return shard_entries


def variables_read_by(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Finds the variables that tensors of a graph depend on.

    Args:
        tensors: The entries of which products are prefetched.

    Returns:
        The handles of the variables.

    Raises:
        ValueError: The tensors depend on an op that has another state than variables.
    """
    visited, ops, handles = set(), [t.op for t in tensors], []
    while ops:
        op = ops.pop()
        if op in visited:
            continue
        visited.add(op)
        op_handles = [t for t in op.inputs if t.dtype == tf.resource]
        if (op_handles and op.type not in _READS) or (
            not op_handles and op.type != "Placeholder" and op.op_def.is_stateful
        ):
            raise _state_error(op)
        handles += op_handles
        ops += [t.op for t in op.inputs if t.dtype != tf.resource]
    return handles


def check_only_read(handles: list[tf.Tensor]) -> None:
    """Checks that a step does not write the variables that prefetched entries depend on.

    Args:
        handles: What `variables_read_by` has returned, in the finished graph of the step.

    Raises:
        ValueError: An op of the graph writes one of the variables.
    """
    for op in (op for handle in handles for op in handle.consumers()):
        if op.type not in _READS:
            raise _state_error(op)


def reads_only(handle: tf.Tensor, others: Collection[Any]) -> bool:
    """Tells whether the ops of a graph only read a variable.

    Args:
        handle: The handle of the variable in the graph.
        others: Ops that do not count.
    """
    return all(op.type in _READS or op in others for op in handle.consumers())


def _state_error(op: Any) -> ValueError:
    return ValueError(
        "pipeline=True needs a model in which no layer before a table has state that training "
        f"changes, got entries that depend on {op.name} ({op.type}); the products of a batch are "
        "computed before the update of the previous batch"
    )
