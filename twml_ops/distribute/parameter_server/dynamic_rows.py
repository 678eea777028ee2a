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

Asynchronous workers look up at any time; see `shared_rows`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.parameter_server import encoding
from twml_ops.distribute.parameter_server.shared_rows import SharedRows
from twml_ops.distribute.parameter_server.tables import RemoteTable, RemoteVariable
from twml_ops.distribute.parameter_server.transport import Link
from twml_ops.ops._library import library
from twml_ops.ops._tape import tf_variable

StateSpecs = Mapping[str, tuple[tuple[int, ...], str, int]]
"""The shape, the type and the initial value of each variable of a lookup, by name."""
_UPDATED_AT = "updated_at"


def check_options(workers: int, pipeline: bool, exchange_every: int, clips_by_norm: bool) -> None:
    """Checks the options of a trainer whose model gives rows to ids.

    Args:
        workers: The number of workers that do not wait for each other.
        pipeline: See `HybridTrainer`.
        exchange_every: See `HybridTrainer`.
        clips_by_norm: Whether the optimizer clips gradients by their norm.

    Raises:
        ValueError: An option is not possible with such a model.
    """
    model = "a model with a DynamicSparseLinear or DynamicLookup layer, which gives rows to ids,"
    if workers > 1 and clips_by_norm:
        raise ValueError(
            f"{model} needs an optimizer without clipnorm and global_clipnorm, or one worker, or "
            f"synchronous ones, got {workers} workers that do not wait for each other: a row could "
            "get another id while the norm of its gradient is on its way"
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
        calls: How often the model calls the layer.
        shared: What several asynchronous workers know of the rows; None: there are no such workers.
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
        self.calls = 0
        self.shared: SharedRows | None = None
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

    def share(self, workers: int, device: str) -> None:
        """Lets several workers look up ids at any time. Called before `create`.

        Args:
            workers: Their number.
            device: The TensorFlow device of this worker.
        """
        self.shared = SharedRows(workers * max(1, self.calls), device)

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
        if self.shared is not None:
            shards = [] if self.table is None else self.table.shards
            self.shared.create(f"{prefix}/lookup/{self.number}", device, shards)

    def all_variables(self) -> list[RemoteVariable]:
        """Returns all variables on servers."""
        new_rows = [] if self._new_rows is None else [self._new_rows]
        shared = [] if self.shared is None else self.shared.variables()
        return [*self.variables.values(), *self._copies, *new_rows, *shared]

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
        if self.shared is not None:
            self.shared.open()
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
            without training. With several workers these are all since the last update, and with
            asynchronous ones what `SharedRows.look_up` returns.
        """
        header, updated_at = self.variables["header"], self.variables[_UPDATED_AT]
        options = dict(self._options)
        state = [self.variables[name] for name in self._specs]
        if self.shared is not None and training is not False:
            sent, begun = link.to_server([ids, self.shared.begun()])
            rows, recent = self.shared.look_up(sent, begun, state, options)
            with tf.device(link.server):
                rows = tf.cast(rows, tf.int32)
            rows, recent = link.to_worker([rows, recent])
            return tf.reshape(tf.cast(rows, tf.int64), tf.shape(ids)), recent
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

    def begin_rows(self, part: int, new_rows: tf.Tensor) -> tf.Tensor | None:
        """Sets rows of a part of the table and of its slots to their initial values.

        Args:
            part: The number of the part.
            new_rows: What `find` has returned, on the server of the part.

        Returns:
            The number of the lookup, for `of_known_rows`; None without asynchronous workers.
        """
        table = self.table
        assert table is not None
        with tf.device(table.shards[part].device):
            if self.shared is None:
                self._set_rows(part, self._rows_of_part(part, new_rows)[0])
                return None
            recent = tf.reshape(new_rows, [-1, 2])
            rows, numbers = self._rows_of_part(part, recent[1:, 0], recent[1:, 1])
            with self.shared.section(part, [rows, numbers]):
                newer = self.shared.newer(part, rows, numbers)
                self._set_rows(part, *(tf.boolean_mask(t, newer) for t in (rows, numbers)))
            return recent[0, 0]

    def begin_saved_rows(self, rows: Any) -> None:
        """Sets rows of a table that was restored to their initial values.

        Args:
            rows: int64 [E], numbers of rows of the whole table, on this process.
        """
        assert self.table is not None
        for part, shard in enumerate(self.table.shards):

            def begin(part: int = part, device: str = shard.device) -> None:
                with tf.device(device):
                    self._set_rows(part, self._rows_of_part(part, tf.constant(rows))[0])

            tf.function(begin, autograph=False).get_concrete_function()()
            shard.wait()

    def initial_rows_of(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the initial values of rows, from the weight of the layer.

        Args:
            rows: int64 [E].
        """
        initial = tf_variable(self._initial_rows).read_value()
        return tf.gather(initial, rows % tf.constant(initial.shape[0], tf.int64))

    def section(self, part: int, after: Sequence[tf.Tensor]) -> Any:
        """Returns a context for the update of a part; see `SharedRows.section`."""
        if self.shared is None:
            return contextlib.nullcontext()
        return self.shared.section(part, after)

    def of_known_rows(
        self, part: int, entries: encoding.ShardEntries, number: tf.Tensor | None, binary: bool
    ) -> encoding.ShardEntries:
        """Returns the entries whose rows still have the ids of the batch.

        Args:
            part: The number of the part.
            entries: Entries of the batch, on the server of the part.
            number: What `begin_rows` has returned.
            binary: Whether the entries have no values.
        """
        if self.shared is None or number is None:
            return entries
        return self.shared.without_evicted(part, entries, number, binary)

    def _rows_of_part(self, part: int, rows: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of the whole table that a part has, as rows of the part, and others."""
        assert self.table is not None
        division = self.table.division
        count = division.row_parts
        if count == 1:
            return [rows, *others]
        own = tf.equal(rows % count, division.row_part(part))
        rows, *kept = (tf.boolean_mask(t, own) for t in (rows, *others))
        return [rows // count, *kept]

    def _set_rows(self, part: int, rows: tf.Tensor, numbers: tf.Tensor | None = None) -> None:
        """Sets rows of a part and of its slots on its server, and the numbers of the rows if any.

        The numbers last: until then another worker lets the rows begin anew. But before the product
        with the shard, which waits for all that writes or marks it.
        """
        table = self.table
        assert table is not None
        shard, copy = table.shards[part], self._copies[part]
        division = table.division
        of_table = rows * division.row_parts + division.row_part(part)
        initial = tf.gather(copy.value(), of_table % tf.constant(copy.shape[0], tf.int64))
        written = [_scatter(shard, rows, initial)]
        for slot, value in zip(table.slots[part], self._initial_slots, strict=True):
            shape = tf.concat([tf.shape(rows), slot.shape[1:].as_list()], axis=0)
            written.append(_scatter(slot, rows, tf.fill(shape, tf.cast(value, slot.dtype))))
        noted = []
        if self.shared is not None and numbers is not None:
            with tf.control_dependencies(written):
                noted.append(self.shared.set_numbers(part, rows, numbers))
        with tf.control_dependencies(noted):
            library.twml_mark_changed_rows(shard.handle, rows, all=False)

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


def _scatter(variable: RemoteVariable, rows: tf.Tensor, values: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
