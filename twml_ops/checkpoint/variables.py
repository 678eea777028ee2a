"""Finds all variables that training changes, and reads and writes their values.

The names are structural (number of the layer, name of the variable in it), because Keras numbers
layers of the same kind within a process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import _keras
from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.layers._tables import TableLayer
from twml_ops.ops import ChangedRows
from twml_ops.ops._tape import tf_variable
from twml_ops.ops.tiered_rows import TieredRows
from twml_ops.placement import TieredPlacement, placement_of

# Variables of the model in Keras 2: a setting, and counters that `fit` sets to 0 when it begins.
_NO_VARIABLES = ("_steps_per_execution", "_train_counter", "_test_counter", "_predict_counter")
_NO_STATE = (tf.keras.layers.Layer, tf.types.experimental.GenericFunction, type)
_TABLE_LAYERS = (TableLayer, tf.keras.layers.Embedding)
_PIECE_BYTES = 16 << 20
_PACKAGE = __name__.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class NamedVariable:
    """A variable of the state of training.

    Attributes:
        name: the same in every process that builds the same model.
        label: name for people, with the name of the layer.
        copies: variables of TensorFlow that have the same value, one on each replica.
        table: for a table that an optimizer of this package updates, and for its slots: the name of
            the table; otherwise empty.
    """

    name: str
    label: str
    copies: tuple[tf.Variable, ...]
    table: str = ""

    @property
    def variable(self) -> tf.Variable:
        """The first of the copies."""
        return self.copies[0]

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes of all dimensions; None for dimensions that are open."""
        return tuple(self.variable.shape)

    @property
    def pieces(self) -> Iterable[np.ndarray] | None:
        """The value in pieces of neighboring rows, if it may be larger than memory."""
        return None

    def view(self) -> np.ndarray:
        """The current value, without a copy where the device is the host.

        Returns:
            The value, which must not be written.
        """
        value = self.variable.read_value()
        try:
            return np.asarray(memoryview(value))
        except (TypeError, ValueError, BufferError):  # a type that the buffer protocol lacks
            return np.asarray(value.numpy())

    def changed_rows(self, group: Sequence[NamedVariable]) -> ChangedRows:
        """The changed rows of this table for a new consumer.

        Args:
            group: the table and its slots.

        Returns:
            The rows.
        """
        return ChangedRows([v.variable for v in group])

    def fits(self, dtype: str, shape: Sequence[int]) -> bool:
        """Whether the variable can have a value of this type and shape.

        Args:
            dtype: name of the type of an element.
            shape: sizes of all dimensions.

        Returns:
            Whether the variable has this type and shape; some of its sizes may be open.
        """
        mine = tf.TensorShape(self.shape)
        return bool(self.variable.dtype.name == dtype and mine.is_compatible_with(list(shape)))

    def assign(self, value: np.ndarray) -> None:
        """Sets the value; that of a variable of varying size may have another size.

        Args:
            value: an array of the type and of a shape that `fits`.
        """
        for variable in self.copies:
            with tf.device(variable.device):
                variable.assign(value)


@dataclasses.dataclass(frozen=True)
class NamedTieredRows(NamedVariable):
    """A table whose rows are in a file, or one of its slots.

    Attributes:
        rows: the rows of the table.
        part: 0 for the table, s + 1 for slot s.
    """

    rows: TieredRows | None = None
    part: int = 0

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the whole table or slot."""
        assert self.rows is not None
        return (self.rows.num_rows, *self.variable.shape[1:])

    @property
    def pieces(self) -> Iterable[np.ndarray]:
        """The rows, at most 16 MiB at once."""
        return self._pieces()

    def _pieces(self) -> Iterator[np.ndarray]:
        assert self.rows is not None
        width = max(1, self.variable.shape[1:].num_elements()) * self.variable.dtype.size
        per_piece = max(1, _PIECE_BYTES // width)
        for begin in range(0, self.rows.num_rows, per_piece):
            count = min(per_piece, self.rows.num_rows - begin)
            yield np.asarray(self.rows.read(begin, count, self.part).numpy())

    def view(self) -> np.ndarray:
        """The whole value, which takes its memory."""
        return np.concatenate(list(self.pieces))

    def assign(self, value: np.ndarray) -> None:
        """See `NamedVariable.assign`."""
        self.assign_pieces([value])

    def assign_pieces(self, pieces: Iterable[np.ndarray]) -> None:
        """Sets a value that comes in pieces.

        Args:
            pieces: neighboring rows, in order.
        """
        assert self.rows is not None
        begin = 0
        for piece in pieces:
            self.rows.write(begin, piece, self.part)
            begin += len(piece)


def variables_of(
    model: tf.keras.Model, more: Mapping[str, Any] | None = None
) -> list[NamedVariable]:
    """All variables of the training of a model.

    These are the weights, with statistics and states of varying size; the states of random
    generators; the optimizer's step, slots and accumulated gradients; and the metrics. Those that
    Keras creates in the first step are found after it.

    Args:
        model: the model; compiled, if the optimizer and the metrics are to be found.
        more: variables, or objects that hold variables, by name.

    Returns:
        The variables, each once.

    Raises:
        CheckpointError: two variables have the same name.
    """
    layers = [model, *_keras.all_layers(model)]
    weights = {i: _keras.direct_variables(layer) for i, layer in enumerate(layers)}
    # The slots of a table that is sharded over replicas are sharded as well.
    finder = _Finder(any(placement_of(v).is_sharded for vs in weights.values() for v in vs))
    for i, layer in enumerate(layers):
        finder.add_all(f"model/{i}", layer.name, weights[i])
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        found = optimizer.variables
        for i, v in enumerate(found() if callable(found) else found):
            finder.add(f"optimizer/{i}", f"optimizer/{_short_name(v)}", v)
        finder.scan("optimizer", "optimizer", optimizer)
        for i, metric in enumerate(model.metrics):
            finder.add_all(f"metrics/{i}", f"metrics/{metric.name}", metric.variables)
            finder.scan(f"metrics/{i}", f"metrics/{metric.name}", metric)
    for i, layer in enumerate(layers):
        finder.scan(f"model/{i}", layer.name, layer)
    for name, value in (more or {}).items():
        finder.visit(f"more/{name}", name, value)
    return _with_tables(_with_tiered_rows(finder.found, weights.values()), model, optimizer)


def _with_tiered_rows(
    found: Sequence[NamedVariable], weights: Iterable[Sequence[Any]]
) -> list[NamedVariable]:
    """The variables, with whole tables where a variable is the cache of one."""
    rows: dict[int, tuple[TieredRows, int]] = {}
    for table in (v for of_layer in weights for v in of_layer):
        place = placement_of(table)
        if isinstance(place, TieredPlacement):
            opened = place.rows(table)
            rows.update((id(v), (opened, part)) for part, v in enumerate(opened.variables))
    return [
        NamedTieredRows(v.name, v.label, v.copies, v.table, *rows[id(v.variable)])
        if id(v.variable) in rows
        else v
        for v in found
    ]


def _with_tables(
    found: Sequence[NamedVariable], model: tf.keras.Model, optimizer: Any
) -> list[NamedVariable]:
    """The variables, with `table` where an optimizer of this package updates rows."""
    names = {id(copy): v.name for v in found for copy in v.copies}
    tables: dict[str, str] = {}
    layers = (each for each in _keras.all_layers(model) if isinstance(each, _TABLE_LAYERS))
    for weight in (v for layer in layers for v in _keras.direct_variables(layer) if v.trainable):
        table = tf_variable(weight)
        row_optimizer = _row_optimizer(optimizer, weight)
        if table.shape.rank != 2 or row_optimizer is None:
            continue
        replicas = getattr(table, "values", (table,))
        for slot in [table, *row_optimizer.slots_of(weight)]:
            each = getattr(slot, "values", (slot,))
            for of_table, of_slot in zip(replicas, each, strict=False):
                if of_slot.shape.rank and of_slot.shape[0] == of_table.shape[0]:
                    tables[names.get(id(of_slot), "")] = names.get(id(of_table), "")
    return [dataclasses.replace(v, table=tables.get(v.name, "")) for v in found]


def _row_optimizer(optimizer: Any, weight: Any) -> Any:
    """The optimizer of this package that updates a weight; None: there is none, or it is not built.

    It may scale the loss of `optimizer`, or be a part of it.
    """
    optimizer = _keras.updating_optimizer_of(optimizer, weight)
    return optimizer if hasattr(optimizer, "slots_of") and _keras.is_built(optimizer) else None


class _Finder:
    """Collects variables in a fixed order, each under the first name that leads to it."""

    def __init__(self, sharded: bool) -> None:
        self._sharded = sharded
        self.found: list[NamedVariable] = []
        self._names: set[str] = set()
        self._seen: dict[int, Any] = {}  # keeps the objects, so that no id is used again

    def add_all(self, name: str, label: str, variables: Sequence[Any]) -> None:
        for v in variables:
            self.add(f"{name}/{_short_name(v)}", f"{label}/{_short_name(v)}", v)

    def add(self, name: str, label: str, variable: Any) -> None:
        of_tf = tf_variable(variable)
        if not self._is_new(of_tf):
            return
        if of_tf.dtype in (tf.string, tf.variant, tf.resource):
            raise CheckpointError(f"{label}: values of {of_tf.dtype.name} cannot be saved")
        name = self._unique(name)
        for end, copies in self._by_value(of_tf).items():
            self._seen.update((id(copy), copy) for copy in copies)
            self.found.append(NamedVariable(name + end, label + end, copies))

    def scan(self, name: str, label: str, owner: Any) -> None:
        """Visits the attributes of an object."""
        for key, value in sorted(vars(owner).items()):
            if key not in _NO_VARIABLES and not key.startswith(("_self_", "_obj_")):
                self.visit(f"{name}/{key}", f"{label}/{key.strip('_')}", value)

    def visit(self, name: str, label: str, value: Any) -> None:
        if isinstance(value, tf.Variable) or isinstance(tf_variable(value), tf.Variable):
            self.add(name, label, value)
        elif isinstance(value, (list, tuple)) and value:
            if self._is_new(value):
                for i, item in enumerate(value):
                    self.visit(f"{name}/{i}", f"{label}/{i}", item)
        elif isinstance(value, dict) and value:
            if self._is_new(value):
                for key, item in value.items():
                    self.visit(f"{name}/{key}", f"{label}/{key}", item)
        elif _may_hold_variables(value) and self._is_new(value):
            self.scan(name, label, value)

    def _by_value(self, variable: tf.Variable) -> dict[str, tuple[tf.Variable, ...]]:
        """The replicas' variables by a mark of the replica; equal ones under ""."""
        copies = getattr(variable, "values", None)
        if not isinstance(copies, (list, tuple)):
            return {"": (variable,)}
        if self._sharded or variable.synchronization == tf.VariableSynchronization.ON_READ:
            return {f"@{i}": (copy,) for i, copy in enumerate(copies)}
        return {"": tuple(copies)}

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value
        return True

    def _unique(self, name: str) -> str:
        number, unique = 1, name
        while unique in self._names:
            number, unique = number + 1, f"{name}#{number}"
        self._names.add(unique)
        return unique


def _may_hold_variables(value: Any) -> bool:
    """Whether the attributes of an object can be variables of the state, and are not a layer's."""
    if isinstance(value, _NO_STATE) or not hasattr(value, "__dict__"):
        return False
    trackable = tf.Module, tf.__internal__.tracking.Trackable
    if isinstance(value, (*trackable, tf.keras.metrics.Metric, tf.random.Generator)):
        return True
    if _keras.holds_random_state(value):
        return True
    return type(value).__module__.partition(".")[0] == _PACKAGE


def _short_name(variable: Any) -> str:
    return str(variable.name).rpartition("/")[2].partition(":")[0]
