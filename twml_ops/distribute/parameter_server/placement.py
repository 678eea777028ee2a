"""The placement of tables on parameter servers, which multiply the entries that they are sent.

Layers compute the product of a batch with a table through `ParameterServerPlacement`. `table_plan`
says how a table is divided over the servers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.parameter_server import encoding
from twml_ops.distribute.parameter_server.dynamic_rows import RemoteLookup, Turns
from twml_ops.distribute.parameter_server.exchange import Exchange, SharedValues
from twml_ops.distribute.parameter_server.modules import RemoteModule
from twml_ops.distribute.parameter_server.products import (
    DeferredTensor,
    TableProduct,
    join_products,
)
from twml_ops.distribute.parameter_server.row_classes import REPLICATED_IN_CLASSES
from twml_ops.distribute.parameter_server.tables import RemoteTable
from twml_ops.distribute.parameter_server.transport import Link, without_sessions
from twml_ops.placement.entries import CsrEntries


@dataclasses.dataclass
class BatchSize:
    """The size of the batch that a table was multiplied with while the model was built.

    Attributes:
        table: The table.
        num_entries: K, an integer scalar tensor.
        num_distinct: The number of distinct ids, an integer scalar tensor.
        num_rows: The rows of the product, or of the output of its module, an integer scalar tensor.
        has_values: Whether the entries have values.
    """

    table: RemoteTable
    num_entries: Any
    num_distinct: Any
    num_rows: Any
    has_values: bool


class ParameterServerPlacement(placement.Placement):
    """Tables are sharded over servers, which multiply. Only entries and products are sent.

    Args:
        prefix: Prefix of the names of all variables, one for each model in training.
        links: The way to each server.
        wire: The types in which products and their gradients are sent.
        deduplicate: Whether an id that occurs several times is sent once if that is smaller.
        replicates: (number, "layer/weight", rows) -> whether a table is an ordinary dense weight,
            of which all workers have a copy, and not on the servers. The number counts the tables
            in the order in which layers create them. None: no table is.
        in_classes: Whether products are added in classes of rows; see `row_classes`.

    Attributes:
        tables: The tables on servers, in the order in which layers have created them.
        paths: "layer/weight" of all tables in this order, including the replicated ones.
        lookups: The lookups of rows of ids, in the same order.
        batch_sizes: The products that were asked for before the tables were on servers.
        exchanges: The messages of the last `recording`, in the order in which they are sent.
        turns: The order in which synchronous workers look up ids; None: there is one worker.
        in_process: Whether the tables are in this process, so that nothing is sent.
    """

    is_sharded = True
    runs_modules = True

    def __init__(
        self,
        prefix: str,
        links: Sequence[Link],
        wire: encoding.WireTypes,
        deduplicate: bool,
        replicates: Callable[[int, str, int], bool] | None = None,
        in_classes: bool = False,
    ) -> None:
        self.prefix = prefix
        self.links = list(links)
        self.wire = wire
        self.deduplicate = deduplicate
        self.tables: list[RemoteTable] = []
        self.paths: list[str] = []
        self.lookups: list[RemoteLookup] = []
        self.batch_sizes: list[BatchSize] = []
        self.exchanges: list[Exchange] = []
        self.turns: Turns | None = None
        self.in_process = len(links) == 1 and links[0].server.startswith("/job:localhost")
        self._replicates, self._in_classes = replicates, in_classes
        self._tape: Any = None
        self._graph: Any = None  # in which products are recorded
        self._recorded: list[TableProduct] | None = None
        self._prefetched: Iterator[TableProduct] | None = None
        self._values: SharedValues | None = None
        self._group: Exchange | None = None
        self._new_rows: dict[str, tf.Tensor] = {}  # rows of tables that got a new id

    def create(
        self,
        add: placement.AddWeight,
        shape: Sequence[int],
        initializer: Any,
        name: str,
        dtype: Any,
    ) -> Any:
        """See `Placement.create`. The shards are created later, by `RemoteTable.create`."""
        number = len(self.paths)
        self.paths.append(name)
        may_be_copied = not self.lookups  # else it may have the rows of a lookup
        if may_be_copied and self._replicates and self._replicates(number, name, shape[0]):
            table = super().create(add, shape, initializer, name, dtype)
            if self._in_classes:
                placement.set_placement(table, REPLICATED_IN_CLASSES)
            return table
        with warnings.catch_warnings():  # Keras 2 warns of an initializer that is called twice
            warnings.simplefilter("ignore")
            initializer((1, 1))  # draws its seed in the order in which layers are built
        table = RemoteTable(f"{number}/{name}", shape, initializer, dtype)
        self.tables.append(table)
        placement.set_placement(table, self)
        return table

    def create_lookup(
        self, name: str, specs: Mapping[str, tuple[Any, ...]], options: Mapping[str, Any]
    ) -> RemoteLookup:
        """See `Placement.create_lookup`. The variables are created after the tables."""
        del name
        self.lookups.append(RemoteLookup(len(self.lookups), specs, options, self._look_up))
        return self.lookups[-1]

    def forget_calls(self) -> None:
        """Forgets the products and lookups that were asked for while the model was built."""
        self.batch_sizes.clear()
        for lookup in self.lookups:
            lookup.calls = 0

    def read(self, variable: Any) -> tf.Tensor:
        """See `Placement.read`."""
        return variable.fetch()

    def assign(self, variable: Any, table: Any) -> None:
        """See `Placement.assign`."""
        variable.assign(tf.convert_to_tensor(table))

    @contextlib.contextmanager
    def recording(
        self,
        tape: Any = None,
        prefetched: Sequence[TableProduct] | None = None,
        values: SharedValues | None = None,
        group: Exchange | None = None,
    ) -> Iterator[list[TableProduct]]:
        """Records the products that are computed in the `with` block. Used in a graph.

        The products are requested from the servers together, at the end of the block, except those
        that the entries of others depend on.

        Args:
            tape: The gradient tape of the step, which watches the products; None: there is none.
            prefetched: Products to use instead of new ones, in the order in which the model asks
                for them; None: all products are computed.
            values: Values that the servers send with the products; None: there are none.
            group: An exchange of `exchange_of` to which the products are added, and which the
                caller determines later; None: they are requested at the end of the block.

        Yields:
            The list to which the products are added.
        """
        self._tape, self._recorded = tape, []
        self._prefetched = None if prefetched is None else iter(prefetched)
        self._graph = tf.compat.v1.get_default_graph()
        self._values, self._group = values, group
        self.exchanges = [group or self._new_exchange(prefetched or (), values)]
        try:
            yield self._recorded
            for lookup in self.lookups:
                lookup.pass_turn(self.turns)
            if prefetched is None and group is None and self.exchanges[-1].products:
                self.exchanges[-1].determine_products()
            for product in self._recorded:
                if product.new_rows is not None and product.table.lookup.shared is not None:
                    product.table.lookup.shared.confirm(product.new_rows, product.output)
            if values is not None and group is None:
                values.request()
        finally:
            for lookup in self.lookups:
                lookup.pass_turn(None)
            self._tape = self._recorded = self._prefetched = self._graph = None
            self._values = self._group = None

    def join_batches(self, batches: int) -> list[TableProduct]:
        """Joins the products of several batches that have been recorded one after another.

        Args:
            batches: The number of batches.

        Returns:
            The products of the joined batch, which the servers are asked for instead.
        """
        exchange = self.exchanges[-1]
        exchange.products = join_products(exchange.products, batches)
        return exchange.products

    def exchange_of(
        self,
        products: Sequence[TableProduct] = (),
        values: SharedValues | None = None,
        links: Sequence[Link] | None = None,
    ) -> Exchange:
        """Returns an exchange with products.

        Args:
            products: The products.
            values: Values that the servers send with the products; None: there are none.
            links: The way to each server; None: `links`, as in the graph of a step.
        """
        links = self.links if links is None else links
        options = self.wire, self.deduplicate, self.in_process, values, self._in_classes
        exchange = Exchange(links, *options)
        exchange.products += products
        return exchange

    def sparse_linear(self, entries: CsrEntries, table: RemoteTable) -> tf.Tensor:
        """See `Placement.sparse_linear`. All servers multiply at the same time."""
        if not table.shards:  # the model is being built, or its shapes are inferred
            num_rows = encoding.num_rows(entries[2])
            self._add_size(entries, table, num_rows)
            return tf.zeros(tf.stack([num_rows, table.shape[1]]))
        return self._output(entries, table)

    def module_output(
        self, entries: CsrEntries, table: RemoteTable, module: placement.ProductModule
    ) -> tf.Tensor:
        """See `Placement.module_output`. The server of the table applies the module."""
        if not table.shards:  # the model is being built, or its shapes are inferred
            product = tf.zeros(tf.stack([encoding.num_rows(entries[2]), table.shape[1]]))
            output = module.function(product, [tf.convert_to_tensor(w) for w in module.weights])
            if table.module is None:
                table.module = RemoteModule(module, output.shape[1])
            if not table.module.is_of(module):
                raise ValueError(f"table {table.path} has two modules, expected one")
            self._add_size(entries, table, tf.shape(output)[0])
            return output
        return self._output(entries, table, module)

    def _add_size(self, entries: CsrEntries, table: RemoteTable, num_rows: tf.Tensor) -> None:
        ids, values, _ = entries
        distinct = tf.size(tf.unique(ids).y)
        self.batch_sizes.append(
            BatchSize(table, tf.size(ids), distinct, num_rows, values is not None)
        )

    def _output(
        self,
        entries: CsrEntries,
        table: RemoteTable,
        module: placement.ProductModule | None = None,
    ) -> tf.Tensor:
        """Returns a product, or the output of its module, and records it in a step."""
        if self._prefetched is not None:
            product = next(self._prefetched)
        else:
            product = self._multiply(entries, table, module)
        if self._recorded is not None:
            product.output = tf.identity(product.output)
            if self._tape is not None:
                self._tape.watch(product.output)
            self._recorded.append(product)
        return product.output

    def _look_up(self, lookup: RemoteLookup, ids: tf.Tensor, training: Any) -> tf.Tensor:
        """Returns the rows of ids, for `RemoteLookup.rows`."""
        if not lookup.variables:  # the model is being built, or its shapes are inferred
            lookup.calls += 1
            return tf.math.floormod(ids, tf.constant(lookup.capacity, tf.int64))
        self._determine_for([ids])
        links = self._links_here()
        link = links[lookup.number % len(links)]
        rows, new = lookup.find(ids, training, link, self.turns)
        if new is not None and lookup.table is not None:
            self._new_rows[lookup.table.name] = new
        return rows

    def _multiply(
        self, entries: CsrEntries, table: RemoteTable, module: placement.ProductModule | None
    ) -> TableProduct:
        values = entries[1]
        new_rows = self._new_rows.pop(table.name, None)
        product = TableProduct(table, values is None, entries, new_rows, module)
        if values is None:
            product.output = tf.stop_gradient(self._request(product))
            return product

        @tf.custom_gradient
        def multiply_values(values: tf.Tensor) -> Any:
            del values  # they are in the message

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                if self._is_deferred(product):  # until the gradients of all products are known
                    product.values_gradient = DeferredTensor([None])
                    return product.values_gradient.tensor
                product.gradient = upstream
                exchange = self._new_exchange([product])
                exchange.send_gradients()
                return exchange.values_gradients([product])[0]

            return self._request(product), gradient

        product.output = multiply_values(values)
        return product

    def _request(self, product: TableProduct) -> tf.Tensor:
        """Returns the product, which is computed together with others in the graph of a step."""
        assert product.entries is not None
        if self._graph is not tf.compat.v1.get_default_graph():
            return self._new_exchange([product]).multiply()[0]
        self._determine_for([t for t in product.entries if t is not None], product.table.path)
        return self.exchanges[-1].add(product)

    def _determine_for(self, tensors: Sequence[tf.Tensor], path: str = "a lookup") -> None:
        """Requests what tensors depend on, so that they can be sent."""
        if self._graph is not tf.compat.v1.get_default_graph():
            return
        if self._values is not None and self._values.is_needed_for(tensors):
            self._values.request()
        if self.exchanges[-1].is_needed_for(tensors):
            if self._group is not None:
                raise ValueError(
                    "exchange_every > 1 and micro_batches need a model in which no table is behind "
                    f"another one, got entries of {path} that depend on products with other tables"
                )
            self.exchanges[-1].determine_products()
            self.exchanges.append(self._new_exchange())

    def _is_deferred(self, product: TableProduct) -> bool:
        return any(product in exchange.products for exchange in self.exchanges)

    def _new_exchange(
        self, products: Sequence[TableProduct] = (), values: SharedValues | None = None
    ) -> Exchange:
        return self.exchange_of(products, values, self._links_here())

    def _links_here(self) -> list[Link]:
        # Messages of a session need the step of the worker, which other functions do not have.
        in_step = self._graph is not None and self._graph is tf.compat.v1.get_default_graph()
        return self.links if in_step else without_sessions(self.links)
