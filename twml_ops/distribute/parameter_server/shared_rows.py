"""Rows of ids of asynchronous workers: a gradient never reaches the next id of a row.

A worker looks up its ids, multiplies, and sends gradients. Meanwhile other workers look up ids, and
a row may get another id. So each row has the number of the lookup that gave it to its id, beside
each part of the table (`SharedRows`):

- The server of the lookup keeps the rows that got a new id, with these numbers, until a worker
  knows that they have begun anew on all servers. Each lookup returns all of them, also those that
  it did not give, and the worker sends them with its entries. A part lets a row begin anew if the
  number is larger than the one that it has. So a row begins anew once, before any product for its
  new id, whichever worker's message comes first, and also if the worker that gave it has died.
- A gradient has the number of the lookup of its entries. Where the row has a larger number, it has
  got another id since, and the entries of that row are dropped.

What must not be interrupted by other workers is within a lock of the part (`RemoteLock`). A worker
that dies leaves no lock behind, and ops are in an order in which each beginning is repeated by the
next worker or has no effect.

Numbers begin with the time at which the servers were filled, so a process that has not noticed that
they were filled again changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server import encoding
from twml_ops.distribute.parameter_server.tables import RemoteLock, RemoteTable, RemoteVariable
from twml_ops.ops.dynamic_lookup import shared_dynamic_lookup


class SharedRows:
    """Which lookup has given each row of a table to its id, for asynchronous workers.

    Args:
        in_flight: The lookups of one step of all workers. The rows of so many last lookups are not
            evicted, so that only a worker that is slower than others loses gradients.
        worker: The TensorFlow device of this worker.

    Attributes:
        recent: int64 [1 + E, 2], on the server of the lookup; see `shared_dynamic_lookup`.
    """

    def __init__(self, in_flight: int, worker: str) -> None:
        self._in_flight = in_flight
        self._base = 0
        with tf.device(worker):
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._worker = worker
        self.recent: Any = None
        self._lock: Any = None  # of the lookup
        self._numbers: list[RemoteVariable] = []
        self._locks: list[RemoteLock] = []

    def create(self, prefix: str, device: str, shards: Sequence[RemoteVariable]) -> None:
        """Creates the handles of the variables.

        Args:
            prefix: Prefix of the variables' names.
            device: The device of the lookup.
            shards: The parts of the table; none if rows with new ids keep their weights.
        """
        self.recent = RemoteVariable(f"{prefix}/recent", [None, 2], tf.int64, device)
        self._lock = RemoteLock(f"{prefix}/lock", device)
        name = f"{prefix}/numbers"
        self._numbers = [
            RemoteVariable(name, [each.shape[0]], tf.int64, each.device) for each in shards
        ]
        self._locks = [RemoteLock(f"{name}/lock", each.device) for each in shards]

    def variables(self) -> list[RemoteVariable]:
        """Returns all variables on servers."""
        return [self.recent, *self._numbers]

    def close(self) -> None:
        """Lets the lookups of all processes fail, before the servers are filled."""
        self.recent.assign(tf.zeros([1, 2], tf.int64))

    def open(self) -> None:
        """Lets processes that join look up ids, in tables of which no row is on its way."""
        base = time.time_ns()
        for numbers in self._numbers:
            numbers.fill(base)
        self.recent.assign(tf.fill([1, 2], tf.constant(base, tf.int64)))

    def join(self) -> None:
        """Learns with which number the lookups begin, after the servers have been filled."""
        self._base = int(self.recent.numpy()[0, 1])

    def begun(self) -> tf.Tensor:
        """Returns the number up to which lookups' rows have begun anew, int64 [1], on the worker.

        Used in a graph.
        """
        with tf.device(self._worker):
            if not self._numbers:  # rows keep their weights
                return tf.constant([tf.int64.max], tf.int64)
            return tf.reshape(self._begun.read_value(), [1])

    def look_up(
        self,
        ids: tf.Tensor,
        begun: tf.Tensor,
        state: Sequence[Any],
        options: Mapping[str, Any],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Looks up ids on the server. Used in a graph.

        Args:
            ids: int64 [K], on the server.
            begun: What `begun` has returned, on the server.
            state: The state of the lookup.
            options: Of `ops.dynamic_lookup`.

        Returns:
            The rows int64 [K], and the rows that may have to begin anew, int64 [2 + 2 E]: what
            `recent` has.
        """
        options = {**options, "pinned": max(options["pinned"], self._in_flight)}
        with self._lock.held([ids, begun]):
            base = tf.constant(self._base, tf.int64)
            rows, recent = shared_dynamic_lookup(
                ids, state, self.recent, base, tf.reshape(begun, []), **options
            )
            return rows, tf.reshape(recent, [-1])

    def confirm(self, recent: tf.Tensor, product: tf.Tensor) -> None:
        """Notes that rows have begun anew on all servers. Used in a graph.

        Args:
            recent: What `look_up` has returned, on the worker.
            product: The product before which they did, on the worker.
        """
        with tf.device(self._worker), tf.control_dependencies([product]):
            self._begun.assign(recent[0])

    def section(self, part: int, after: Sequence[tf.Tensor]) -> Any:
        """Returns a context in which no other worker changes a part; see `RemoteLock.held`."""
        return self._locks[part].held(after)

    def newer(self, part: int, rows: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Returns which rows have got a new id that a part does not know yet, bool [E].

        Args:
            part: The number of the part.
            rows: int64 [E], rows of the part, on its server.
            numbers: int64 [E], of the lookups that gave them.
        """
        return numbers > self._gather(part, rows)

    def set_numbers(self, part: int, rows: tf.Tensor, numbers: tf.Tensor) -> tf.Operation:
        """Notes that rows of a part have begun anew; the arguments are as of `newer`."""
        handle = self._numbers[part].handle
        return tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=rows, updates=numbers)

    def without_evicted(
        self, part: int, entries: encoding.ShardEntries, number: tf.Tensor, binary: bool
    ) -> encoding.ShardEntries:
        """Returns the entries whose rows have had their ids since the lookup.

        Args:
            part: The number of the part.
            entries: Entries of a batch, on the server of the part.
            number: The number of the lookup, int64 scalar.
            binary: Whether the entries have no values.
        """
        kept = self._gather(part, entries.ids) <= number
        positions = tf.where(kept)[:, 0]
        before = tf.cumsum(tf.cast(kept, entries.row_splits.dtype))
        before = tf.concat([tf.zeros([1], before.dtype), before], axis=0)
        values = entries.values if binary else tf.gather(entries.values, positions)
        splits = tf.gather(before, entries.row_splits)
        return encoding.ShardEntries(tf.gather(entries.ids, positions), values, splits)

    def snapshot_of_lookup(
        self, variables: Mapping[str, RemoteVariable]
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Reads the state of the lookup at one moment.

        Args:
            variables: Its variables by name.

        Returns:
            Their values by name, on the server, and the value of `recent` in this process.
        """

        def read() -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            with self._lock.held():
                values = {name: tf.identity(v.value()) for name, v in variables.items()}
                return values, tf.identity(self.recent.value())

        values, recent = tf.function(read, autograph=False).get_concrete_function()()
        return values, tf.constant(recent.numpy())

    def snapshot_of_part(
        self, table: RemoteTable, part: int, recent: tf.Tensor, read: Callable[[], Any]
    ) -> tuple[tf.Tensor, Any]:
        """Reads a part of the table at one moment, after the state of the lookup.

        Args:
            table: The table.
            part: The number of the part.
            recent: What `snapshot_of_lookup` has returned.
            read: Reads variables of the part in a graph.

        Returns:
            The rows of the whole table, int64 [E], of which the part has other ids than the
            snapshot of the lookup says: an earlier one, since the row has not begun anew yet, or a
            later one. And what `read` has returned. Both are on the server.
        """
        division = table.division
        count, first = division.row_parts, division.row_part(part)

        def snapshot() -> tuple[tf.Tensor, Any]:
            with self.section(part, []):
                numbers = self._numbers[part].value()
                known = tf.constant(recent.numpy())
                own = tf.boolean_mask(known[1:], known[1:, 0] % count == first)
                rows = own[:, 0] // count
                early = tf.boolean_mask(rows, self.newer(part, rows, own[:, 1]))
                late = tf.where(numbers > known[0, 0])[:, 0]
                found = tf.concat([early, late], axis=0) * count + first
                return found, tf.nest.map_structure(tf.identity, read())

        return tf.function(snapshot, autograph=False).get_concrete_function()()

    def _gather(self, part: int, rows: tf.Tensor) -> tf.Tensor:
        # Not of the value, a reference to which would let the next update copy the variable.
        numbers = tf.raw_ops.ResourceGather(
            resource=self._numbers[part].handle, indices=rows, dtype=tf.int64
        )
        numbers.set_shape([None])
        return numbers
