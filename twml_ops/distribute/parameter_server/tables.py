"""Tables and variables on servers, and how whole tables are copied from and to them.

A `RemoteVariable` is one variable on one server, which all processes share by its name. A
`RemoteLock` is a lock on a server. A
`RemoteTable` is a table of which servers have parts, one `RemoteVariable` each. A layer has it in
place of its kernel. `copy_model_weights` copies a model with tables on servers to an ordinary one,
and the reverse.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from twml_ops import _keras, placement
from twml_ops.distribute.parameter_server.division import WHOLE, Division
from twml_ops.distribute.parameter_server.encoding import ShardEntries
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable

_MESSAGE_BYTES = 64 << 20  # of one transfer; a protocol buffer has at most 2 GB


class RemoteVariable:
    """A variable that is on a server and that all processes share by its name.

    It has those methods of `tf.Variable` that optimizers use, and the ops of this package update it
    in place. It has no initial value: reading it before a process has assigned one is an error.

    Args:
        name: The name, which is the same in all processes.
        shape: Its shape.
        dtype: Its type.
        device: The TensorFlow device that holds it.
    """

    def __init__(self, name: str, shape: Sequence[Any], dtype: Any, device: str) -> None:
        self.name = name
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.device = device
        with tf.init_scope(), tf.device(device):
            self.handle = tf.raw_ops.VarHandleOp(
                dtype=self.dtype, shape=self.shape, shared_name=name, container=""
            )

    def exists(self) -> bool:
        """Tells whether the variable has a value."""
        with tf.device(self.device):
            return bool(tf.raw_ops.VarIsInitializedOp(resource=self.handle).numpy())

    def value(self) -> tf.Tensor:
        """Returns the value, as a tensor on the device of the variable."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)
            # In eager mode `set_shape` would wait for the server while it holds Python's global
            # lock, so that no timeout could end the wait.
            if not tf.executing_eagerly():
                value.set_shape(self.shape)
            return value

    def assign(self, value: Any) -> tf.Tensor:
        """Sets the value. In eager mode a large value is sent in several messages."""
        with tf.device(self.device):
            value = self._send(value) if tf.executing_eagerly() else self._cast(value)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)
        self.wait()
        return value

    def fill(self, value: float) -> None:
        """Sets all elements to one number, which the server expands."""
        with tf.device(self.device):
            full = tf.fill(self.shape, tf.cast(value, self.dtype))
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=full)
        self.wait()

    def destroy(self) -> None:
        """Removes the value, so that the server has its memory again."""
        with tf.device(self.device):
            tf.raw_ops.DestroyResourceOp(resource=self.handle, ignore_lookup_error=True)

    def wait(self) -> None:
        """Waits until the server has run the ops that were sent to it in eager mode.

        TensorFlow does not wait for a remote op without outputs, so that a function or a read of a
        file could overtake it. Does nothing in a graph.

        Raises:
            tf.errors.UnavailableError: The variable has no value on the server.
        """
        if tf.executing_eagerly() and not self.exists():
            raise tf.errors.UnavailableError(
                None, None, f"{self.name} has no value on its server after it was assigned"
            )

    def assign_add(self, value: Any) -> tf.Tensor:
        """Adds a value, and returns the new one."""
        with tf.device(self.device):
            tf.raw_ops.AssignAddVariableOp(resource=self.handle, value=self._cast(value))
            return self.value()

    def assign_sub(self, value: Any) -> tf.Tensor:
        """Subtracts a value, and returns the new one."""
        with tf.device(self.device):
            tf.raw_ops.AssignSubVariableOp(resource=self.handle, value=self._cast(value))
            return self.value()

    def numpy(self) -> Any:
        """Returns the value as a NumPy array."""
        return self.value().numpy()

    def fetch(self) -> tf.Tensor:
        """Copies the value to this process, in several messages if it is large."""
        whole = self.value()
        parts = []
        for start, stop in self._row_ranges():
            with tf.device(self.device):
                part = whole[start:stop]
            parts.append(tf.identity(part.numpy()))
        return tf.concat(parts, axis=0) if parts else tf.constant(whole.numpy())

    def fetch_rows(self, begin: int, end: int) -> tf.Tensor:
        """Copies the rows [begin, end) to this process."""
        with tf.device(self.device):
            part = self.value()[begin:end]
        return tf.constant(part.numpy())

    def multiply(self, entries: ShardEntries, binary: bool) -> tf.Tensor:
        """Multiplies a batch with the table that this is, or a part of one, on its server.

        Args:
            entries: The batch, on the server.
            binary: Whether the entries have no values.

        Returns:
            float32 [B, D], on the server.
        """
        product: tf.Tensor = library.twml_resource_sparse_linear(
            *entries, self.handle, binary=binary
        )
        return product

    def values_gradient(self, entries: ShardEntries, gradient: tf.Tensor) -> tf.Tensor:
        """Computes the gradient of the values of a batch that was multiplied.

        Args:
            entries: The batch, on the server.
            gradient: float32 [B, D], the gradient of the product, on the server.

        Returns:
            float32 [K], on the server.
        """
        found: tf.Tensor = library.twml_resource_sparse_linear_values_grad(
            entries.ids, entries.row_splits, self.handle, gradient
        )
        return found

    def _cast(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        return value if value.dtype == self.dtype else tf.cast(value, self.dtype)

    def _send(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value)
        parts = [tf.identity(value[a:b]) for a, b in self._row_ranges()]
        return self._cast(tf.concat(parts, axis=0) if len(parts) > 1 else value)

    def _row_ranges(self) -> list[tuple[int, int]]:
        if not self.shape.rank or not self.shape.is_fully_defined():
            return []
        rows = self.shape[0]
        step = max(1, _MESSAGE_BYTES * rows // max(1, self.shape.num_elements() * 4))
        return [(a, min(a + step, rows)) for a in range(0, rows, step)]


def _operator(name: str) -> Any:
    function = getattr(operator, name)
    return (
        lambda self, other: function(self.value(), other),
        lambda self, other: function(other, self.value()),
    )


for _name in ("add", "sub", "mul", "truediv"):
    _forward, _backward = _operator(_name)
    setattr(RemoteVariable, f"__{_name}__", _forward)
    setattr(RemoteVariable, f"__r{_name}__", _backward)


def _to_tensor(
    variable: RemoteVariable, dtype: Any = None, name: Any = None, as_ref: bool = False
) -> tf.Tensor:
    del name, as_ref
    value = variable.value()
    return value if dtype is None or dtype == value.dtype else NotImplemented


tf.register_tensor_conversion_function(RemoteVariable, _to_tensor)


class RemoteLock:
    """A lock on a server, which all processes share by its name. Used in a graph.

    TensorFlow orders the ops of a lock in a graph by its handle, so there must be only one.

    Args:
        name: The name, which is the same in all processes.
        device: The TensorFlow device of the server.
    """

    def __init__(self, name: str, device: str) -> None:
        self._device = device
        with tf.init_scope(), tf.device(device):
            self._handle = tf.raw_ops.MutexV2(shared_name=name, container="")

    @contextlib.contextmanager
    def held(self, after: Sequence[tf.Tensor] = ()) -> Iterator[None]:
        """Holds the lock for the ops of the `with` block, which must all be on the server.

        The lock is free again if the step fails.

        Args:
            after: Tensors on the server that the ops need. The lock is taken when they are there,
                so that it is not held while a message is on its way.

        Yields:
            Nothing.
        """
        graph = tf.compat.v1.get_default_graph()
        with tf.device(self._device):
            with tf.control_dependencies([t.op for t in after]):
                lock = tf.raw_ops.MutexLock(mutex=self._handle)
            before = len(graph.get_operations())
            with tf.control_dependencies([lock]):
                yield
            inside = graph.get_operations()[before:]
            with tf.control_dependencies([op for op in inside if op.type != "Placeholder"]):
                released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            # Otherwise it would wait for all ops before that have effects and no resource.
            graph.experimental_acd_manager.run_independently(released)


class RemoteRows:
    """A table or a slot of one on servers, of which slices of rows are copied to this process.

    Args:
        division: The parts and their servers.
        parts: The variable of each part.
        shape: The shape of the whole, [N, ...].
    """

    def __init__(
        self, division: Division, parts: Sequence[RemoteVariable], shape: Sequence[Any]
    ) -> None:
        self.shape = tf.TensorShape(shape)
        self._division, self._parts = division, parts

    def __getitem__(self, rows: slice) -> tf.Tensor:
        """The rows of a slice without a step, whose begin and end are given."""
        begin, end = rows.start, min(rows.stop, self.shape[0])
        found = [
            each.fetch_rows(*self._division.rows_on(i, begin, end))
            for i, each in enumerate(self._parts)
        ]
        return self._division.merge(found, [end - begin, *self.shape[1:]], begin)


class RemoteTable:
    """A table [N, D] of which servers have parts. A layer has it in place of a variable.

    Args:
        name: "number/layer/weight", the same in all processes.
        shape: Shape of the whole table, (N, D).
        initializer: Initializer of the whole table.
        dtype: float32 or bfloat16.

    Attributes:
        number: The number in `name`.
        path: "layer/weight", as in a single process.
        division: The parts and their servers.
        shards: The variable of each part, on its server; empty before `create`.
        slots: The optimizer's slots of each part.
        was_trained: Whether the initializer gives the values of a model that was trained.
        trainable: Whether the run trains the table; see `find_frozen_tables`.
        lookup: The `RemoteLookup` that gives the rows to ids; None: ids are rows.
        module: The `RemoteModule` of its products; None: there is none.
    """

    def __init__(self, name: str, shape: Sequence[int], initializer: Any, dtype: Any) -> None:
        self.name = self._unique_id = name  # Keras identifies variables by `_unique_id`
        number, _, self.path = name.partition("/")
        self.number = int(number)
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)
        self.initializer = initializer
        self.division = WHOLE
        self.shards: list[RemoteVariable] = []
        self.slots: list[list[RemoteVariable]] = []
        self.was_trained = False
        self.trainable = True
        self.lookup: Any = None
        self.module: Any = None

    def create(self, prefix: str, devices: Sequence[str], division: Division) -> None:
        """Creates the handles of the shards, which have no values yet.

        Args:
            prefix: Prefix of the variables' names.
            devices: The devices of the servers.
            division: The parts and the numbers of their servers.
        """
        self.division = division
        shapes = [division.shape(i, *self.shape) for i in range(len(division.servers))]
        self.shards = [
            RemoteVariable(f"{prefix}/{self.name}", shape, self.dtype, devices[server])
            for shape, server in zip(shapes, division.servers, strict=True)
        ]

    def create_slots(self, prefix: str, optimizer: Any) -> None:
        """Creates the handles of an optimizer's slots, on the servers of the shards.

        Args:
            prefix: Prefix of the variables' names.
            optimizer: The optimizer of this table.
        """
        self.slots = []
        for shard in self.shards:
            self.slots.append(
                [
                    RemoteVariable(f"{prefix}/{self.name}/{s.name}", s.shape, s.dtype, shard.device)
                    for s in optimizer.update_rule.slots(shard.shape, shard.dtype)
                ]
            )

    def initial_value(self) -> tf.Tensor:
        """The values of the whole table that the initializer of the layer draws."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of an initializer that is called twice
            if self.was_trained:
                return self.initializer(tuple(self.shape))
            # Keras draws other numbers for bfloat16 than for float32.
            return self.initializer(tuple(self.shape), dtype=self.dtype)

    def initialize(self) -> None:
        """Assigns the values that the layer's initializer draws."""
        whole = tf.cast(self.initial_value(), self.dtype)
        self.assign(whole)
        if self.lookup is not None and not self.was_trained:
            self.lookup.draw_initial_rows(whole)

    def assign(self, whole: Any) -> None:
        """Assigns the whole table."""
        for i, shard in enumerate(self.shards):
            shard.assign(self.division.slice(whole, i, self.shape.rank))

    def fetch(self) -> tf.Tensor:
        """Copies the whole table to this process."""
        return self.division.merge([s.fetch() for s in self.shards], self.shape)


def copy_model_weights(
    source: Any, target: Any, tables: Mapping[str, tf.Tensor] | None = None
) -> None:
    """Copies all weights and states of the layers of `source` to the layers of `target`.

    A table of `source` that is on servers is fetched. A table of `source` may also have no values
    anywhere (see `ChiefBuiltModel`). Then a remote table of `target` takes over its initializer,
    and a whole table of `target` gets the value in `tables`, or what the initializer draws if there
    is none. A whole table of `source` becomes the initial value of a remote table of `target`.

    Args:
        source: A Keras model.
        target: Another model of the same layers.
        tables: Maps names of tables of `source` without values to their values, [N, D].
    """
    for target_layer, source_layer in zip(_layers(target), _layers(source), strict=True):
        target_tables, source_tables = layer_tables(target_layer), layer_tables(source_layer)
        if not any(isinstance(k, RemoteTable) for k in (*source_tables, *target_tables)):
            store: dict[str, Any] = {}
            source_layer.save_own_variables(store)
            if store:
                target_layer.load_own_variables(store)
            continue
        for target_table, source_table in zip(target_tables, source_tables, strict=True):
            _copy_table(source_table, target_table, tables or {})
        table_ids = {id(k) for k in (*target_tables, *source_tables)}
        target_weights, source_weights = (
            [v for v in _keras.direct_variables(layer) if id(v) not in table_ids]
            for layer in (target_layer, source_layer)
        )
        for v, value in zip(target_weights, source_weights, strict=True):
            tf_variable(v).assign(tf_variable(value))


def find_frozen_tables(model: Any) -> None:
    """Notes which tables on servers are not trained, since their layers are frozen.

    Args:
        model: A Keras model.
    """
    trained = {id(layer) for layer in _keras.trained_layers(model)}
    for layer in _layers(model):
        for table in layer_tables(layer):
            if isinstance(table, RemoteTable):
                table.trainable = id(layer) in trained


def layer_tables(layer: Any) -> list[Any]:
    """Returns the tables of a layer.

    Args:
        layer: A Keras layer.

    Returns:
        Variables or `RemoteTable`s; an empty list for a layer without tables.
    """
    return list(getattr(layer, "table_variables", ()))


def pairs_of_tables(model: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """Iterates over the tables of a model that are on servers.

    Args:
        model: A Keras model.
        other: Another one of the same layers.

    Yields:
        Each `RemoteTable` of `model` and the same table of `other`.
    """
    for layer, other_layer in zip(_layers(model), _layers(other), strict=True):
        for table, same in zip(layer_tables(layer), layer_tables(other_layer), strict=True):
            if isinstance(table, RemoteTable):
                yield table, same


def _copy_table(source: Any, target: Any, tables: Mapping[str, tf.Tensor]) -> None:
    if not isinstance(source, RemoteTable) and not isinstance(target, RemoteTable):
        tf_variable(target).assign(tf_variable(source).read_value())
        return
    if not isinstance(source, RemoteTable):
        target.initializer, target.was_trained = partial(_value_of, source), True
        return
    if isinstance(target, RemoteTable):
        target.initializer, target.was_trained = source.initializer, source.was_trained
        return
    place = placement.placement_of(target)
    if isinstance(place, placement.TieredPlacement):
        if source.shards:
            place.assign(target, RemoteRows(source.division, source.shards, source.shape))
        elif source.name in tables:
            place.assign(target, tables[source.name])
        else:
            place.begin_with(source.initializer)
        return
    if source.shards:
        value = source.fetch()
    else:
        value = tables[source.name] if source.name in tables else source.initial_value()
    tf_variable(target).assign(tf.cast(value, target.dtype))


def _value_of(table: Any, shape: Sequence[int], dtype: Any = None) -> tf.Tensor:
    """The values of a whole table, as an initializer of a table of its shape and type."""
    del shape, dtype
    return tf.convert_to_tensor(placement.placement_of(table).read(table))


def _layers(model: Any) -> list[Any]:
    return [model, *_keras.all_layers(model)]
