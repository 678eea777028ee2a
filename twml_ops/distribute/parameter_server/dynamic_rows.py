"""The rows that a `DynamicLookup` gives to ids, with its state on one server.

One server has the whole state of a lookup, so the rows of ids, evictions included, are the same for
any number of servers. The layers of a model are divided over the servers: lookup i is on server
i mod P. The table itself is divided over the servers as any table. A step sends the ids to the
server of the lookup (8 bytes each) and gets their rows (4 bytes each), which are the entries of the
product. The numbers of the rows that got a new id go with these entries to all servers with a part
of the table, which set the rows and the rows of the slots to their initial values.

Synchronous workers look up one after another in each step, the leader first (`turns`), so the rows
are the ones of a process that looks up the parts of the batch in this order. Each worker sends the
numbers of all rows that got a new id since the last update, also from a worker before it, whose
message may arrive later. Nothing updates a row in between, so that it may begin anew twice. While
the leader writes a checkpoint between two steps, no other worker can change the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.parameter_server.tables import RemoteTable, RemoteVariable
from twml_ops.distribute.parameter_server.transport import Link
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable

StateSpecs = Mapping[str, tuple[tuple[int, ...], str, int]]
"""The shape, the type and the initial value of each variable of a lookup, by name."""
_UPDATED_AT = "updated_at"


def check_options(workers: int, mode: str, pipeline: bool, exchange_every: int) -> None:
    """Checks the options of a trainer whose model gives rows to ids.

    Args:
        workers: The number of workers.
        mode: See `HybridTrainer`.
        pipeline: See `HybridTrainer`.
        exchange_every: See `HybridTrainer`.

    Raises:
        ValueError: An option is not possible with such a model.
    """
    model = "a model with a DynamicSparseLinear or DynamicLookup layer, which gives rows to ids,"
    if workers > 1 and mode != "sync":
        raise ValueError(
            f'{model} needs mode="sync" or one worker, got mode="{mode}" and {workers} workers: a '
            "row could get another id while the gradient of a worker is on its way; use hashed ids "
            "(models.HashedIds) there"
        )
    if pipeline:
        raise ValueError(
            f"{model} needs pipeline=False, got True: a batch that is looked up ahead would take "
            "rows that the current step still updates"
        )
    if exchange_every > 1:
        raise ValueError(
            f"{model} needs exchange_every=1, got {exchange_every}: rows that wait for an update "
            "keep their ids"
        )


class Turns(Protocol):
    """The order in which several workers look up ids in a step."""

    def wait_for_turn(self, device: str, label: str) -> list[tf.Operation]:
        """Returns the op on a device that waits for the worker before; none for the first one."""

    def pass_turn(self, device: str, label: str, after: Sequence[tf.Operation]) -> None:
        """Lets the next worker go on after ops on a device."""


class RemoteLookup:
    """The state of a `DynamicLookup`, on one server; the layer has it in place of variables.

    Args:
        number: The number of the lookup in its model.
        specs: The state, in the order in which `ops.dynamic_lookup` takes it.
        options: Of `ops.dynamic_lookup`.
        look_up: (this lookup, ids, whether ids get rows) -> rows int64 [K], in the graph of a step.

    Attributes:
        capacity: The number of rows.
        table: The table whose rows begin anew when they get a new id; None: there is none.
        variables: The variables by name, the ones of `specs` first; none before `create`.
    """

    def __init__(
        self,
        number: int,
        specs: StateSpecs,
        options: Mapping[str, Any],
        look_up: Callable[[RemoteLookup, tf.Tensor, Any], tf.Tensor],
    ) -> None:
        self.number = number
        self.capacity = specs["keys"][0][0]
        self.table: RemoteTable | None = None
        self.variables: dict[str, RemoteVariable] = {}
        self._specs = dict(specs)
        self._options = dict(options)
        self._look_up = look_up
        self._values: list[Any] = []
        self._initial_rows: Any = None
        self._updated_at: Any = None
        self._copies: list[RemoteVariable] = []  # of the initial rows, one on each server
        self._new_rows: RemoteVariable | None = None  # of all workers, since the last update
        self._done: list[tf.Operation] = []  # the lookups of the step that is being built
        self._adds_rows = False  # whether there are several workers
        self._initial_slots: list[float] = []

    def rows(self, ids: tf.Tensor, training: Any) -> tf.Tensor:
        """Returns the rows of ids, int64 [K].

        Args:
            ids: int64 [K].
            training: Whether ids are counted and get rows.
        """
        return self._look_up(self, ids, training)

    def attach(self, table: RemoteTable, initial_rows: Any, updated_at: Any) -> None:
        """Says which table has the rows.

        Args:
            table: The table.
            initial_rows: A weight [R, D] of the layer. Row r of the table begins with its row
                r mod R.
            updated_at: The weight of the layer that is the number of lookups before the last
                update, int64.
        """
        table.lookup, self.table = self, table
        self._initial_rows, self._updated_at = initial_rows, updated_at

    def describe(self) -> dict[str, list[int]]:
        """Returns the shape of each variable of the state, as JSON has it."""
        return {name: list(shape) for name, (shape, _, _) in self._specs.items()}

    def dtypes(self) -> dict[str, str]:
        """Returns the type of each variable that checkpoints have."""
        return {n: dtype for n, (_, dtype, _) in self._specs.items()} | {_UPDATED_AT: "int64"}

    def header(self) -> Any:
        """Returns the header of the state; see cc/core/dynamic_lookup.h."""
        return self.variables["header"].fetch()

    def create(self, prefix: str, devices: Sequence[str], slots: Sequence[float]) -> None:
        """Creates the handles of the variables, after the shards of the table.

        Args:
            prefix: Prefix of the variables' names.
            devices: The devices of the servers.
            slots: The initial values of the slots of the table.
        """
        device = devices[self.number % len(devices)]
        shapes = {name: shape for name, (shape, _, _) in self._specs.items()}
        self.variables = {
            name: RemoteVariable(
                f"{prefix}/lookup/{self.number}/{name}", shapes.get(name, ()), dtype, device
            )
            for name, dtype in self.dtypes().items()
        }
        self._initial_slots = list(slots)
        name = f"{prefix}/lookup/{self.number}/new_rows"
        self._new_rows = RemoteVariable(name, [None], tf.int64, device)
        if self.table is not None:
            name = f"{prefix}/lookup/{self.number}/initial_rows"
            rows, dtype = self._initial_rows.shape[0], self.table.dtype
            self._copies = [
                RemoteVariable(name, [rows, shard.shape[1]], dtype, shard.device)
                for shard in self.table.shards
            ]

    def all_variables(self) -> list[RemoteVariable]:
        """Returns all variables on servers."""
        new_rows = [] if self._new_rows is None else [self._new_rows]
        return [*self.variables.values(), *self._copies, *new_rows]

    def initialize(self) -> None:
        """Assigns the values of `load`, or the ones of a lookup that has seen no id."""
        for i, (name, (_, _, value)) in enumerate(self._specs.items()):
            if self._values:
                self.variables[name].assign(self._values[i])
            else:
                self.variables[name].fill(value)
        before = self._updated_at
        if before is None:
            self.variables[_UPDATED_AT].fill(0)
        else:
            self.variables[_UPDATED_AT].assign(tf_variable(before).read_value())

    def draw_initial_rows(self, whole: tf.Tensor) -> None:
        """Takes the first rows of the values that were drawn for the table as the initial ones."""
        rows = self._initial_rows.shape[0]
        tf_variable(self._initial_rows).assign(whole[:rows])

    def push_initial_rows(self) -> None:
        """Copies the initial rows of this process to all servers, on which no row is new."""
        self._clear_new_rows()
        if self.table is None:
            return
        value = tf_variable(self._initial_rows).read_value()
        by_part = self.table.division.columns_by_part(value)
        for copy, columns in zip(self._copies, by_part, strict=True):
            copy.assign(columns)

    def values(self) -> list[Any]:
        """Returns the values of the state, as arrays; none if they are the initial ones."""
        if not self.variables:
            return self._values
        return [self.variables[name].fetch().numpy() for name in self._specs]

    def pull_updated_at(self) -> None:
        """Copies the number of lookups before the last update to the weight of the layer."""
        if self.variables and self._updated_at is not None:
            tf_variable(self._updated_at).assign(self.variables[_UPDATED_AT].fetch())

    def load(self, values: Sequence[Any]) -> None:
        """Sets the values of the state, before `initialize`.

        Args:
            values: What `values` has returned.

        Raises:
            ValueError: A value has another shape. Nothing is changed.
        """
        want = [shape for shape, _, _ in self._specs.values()]
        got = [tuple(np.shape(v)) for v in values]
        if values and got != want:
            raise ValueError(f"the state of a lookup must have the shapes {want}, got {got}")
        self._values = list(values)

    def load_saved(self, values: Mapping[str, Any]) -> None:
        """Sets the values of all variables of a checkpoint; see `dtypes` and `load`."""
        self.load([values[name] for name in self._specs])
        if self._updated_at is not None:
            tf_variable(self._updated_at).assign(values[_UPDATED_AT])

    def find(
        self, ids: tf.Tensor, training: Any, link: Link, turns: Turns | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Looks up ids on the server.

        Args:
            ids: int64 [K], on the worker.
            training: Whether ids are counted and get rows.
            link: The way to the server of the lookup.
            turns: The order of several workers; None: there is one worker.

        Returns:
            The rows int64 [K], and the rows that got a new id, int64 [E], on the worker; None
            without training. With several workers these are all since the last update.
        """
        header, updated_at = self.variables["header"], self.variables[_UPDATED_AT]
        options = dict(self._options)
        (sent,) = link.to_server([ids])
        turns = None if training is False else turns
        turn: list[tf.Operation] = []
        if turns is not None and not self._done:  # the first lookup of the step
            turn = turns.wait_for_turn(link.server, turn_of(self.number))
        with tf.device(link.server), tf.control_dependencies(turn):
            pinned = tf.constant(options.pop("pinned"), tf.int64)
            if training is not False and self.table is not None:
                since = header.value()[0] + tf.constant(1, tf.int64) - updated_at.value()
                pinned = tf.maximum(since, pinned)
            state = [self.variables[name] for name in self._specs]
            rows, reset = ops.dynamic_lookup(sent, state, training, pinned=pinned, **options)
            if turns is not None:
                self._done.append(rows.op)
                reset = reset if self.table is None else self._add_new_rows(reset)
            found = [tf.cast(rows, tf.int32), *([] if training is False else [reset])]
        rows, *new = link.to_worker(found)
        return tf.reshape(tf.cast(rows, tf.int64), tf.shape(ids)), new[0] if new else None

    def pass_turn(self, turns: Turns | None) -> None:
        """Lets the next worker look up ids, after all lookups of this step. Used in a graph.

        Args:
            turns: The order of several workers; None: the step was not built to its end.
        """
        done, self._done = self._done, []
        if turns is not None and done:
            turns.pass_turn(self.variables["header"].device, turn_of(self.number), done)

    def _add_new_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """Adds rows to the ones that got a new id since the last update, and returns all."""
        assert self._new_rows is not None
        rows = tf.concat([self._new_rows.value(), rows], axis=0)
        op = tf.raw_ops.AssignVariableOp(resource=self._new_rows.handle, value=rows)
        self._done.append(op)
        self._adds_rows = True
        return rows

    def _clear_new_rows(self) -> None:
        assert self._new_rows is not None
        with tf.device(self._new_rows.device):
            none = tf.zeros([0], tf.int64)
            tf.raw_ops.AssignVariableOp(resource=self._new_rows.handle, value=none)
        self._new_rows.wait()

    def begin_rows(self, part: int, rows: tf.Tensor) -> None:
        """Sets rows of a part of the table and of its slots to their initial values.

        Args:
            part: The number of the part.
            rows: int64 [E], numbers of rows of the whole table, on the server of the part.
        """
        table = self.table
        assert table is not None
        shard, count = table.shards[part], table.division.row_parts
        with tf.device(shard.device):
            if count > 1:
                own = tf.equal(rows % count, table.division.row_part(part))
                rows = tf.boolean_mask(rows, own)
            of_shard = rows // count if count > 1 else rows
            copy = self._copies[part]
            initial = tf.gather(copy.value(), rows % tf.constant(copy.shape[0], tf.int64))
            _scatter(shard, of_shard, initial)
            for slot, value in zip(table.slots[part], self._initial_slots, strict=True):
                shape = tf.concat([tf.shape(of_shard), slot.shape[1:].as_list()], axis=0)
                _scatter(slot, of_shard, tf.fill(shape, tf.cast(value, slot.dtype)))
            library.twml_mark_changed_rows(shard.handle, of_shard, all=False)

    def release(self) -> None:
        """Lets rows that were looked up so far get new ids, since the table has been updated."""
        updated_at = self.variables[_UPDATED_AT]
        with tf.device(updated_at.device):
            now = self.variables["header"].value()[0]
            tf.raw_ops.AssignVariableOp(resource=updated_at.handle, value=now)
        if self._adds_rows:
            self._clear_new_rows()


def turn_of(number: int) -> str:
    """Returns the label of the queues in which workers wait for lookup `number`."""
    return f"turn/{number}"


def _scatter(variable: RemoteVariable, rows: tf.Tensor, values: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
