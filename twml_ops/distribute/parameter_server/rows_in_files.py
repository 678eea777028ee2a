"""Tables whose rows are in files of the servers, with a cache of rows in the memory of each.

A `PartInFile` is in the place of the variable that has all rows of a part. `placement.tiered` has
the same for a table of one process. The server keeps the rows itself
(`cc/tf/kernels/tiered_rows_kernel.cc`), since they outlive the process that has opened them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server.division import Division
from twml_ops.distribute.parameter_server.encoding import ShardEntries
from twml_ops.distribute.parameter_server.tables import RemoteTable, RemoteVariable
from twml_ops.ops._library import library
from twml_ops.ops.tiered_rows import ROWS_IN_FILE
from twml_ops.placement import Tiered
from twml_ops.placement.initial_rows import constant_of, initial_rows


class PartInFile(RemoteVariable):
    """A part of a table, or of one of its slots, whose rows are in a file of its server.

    Its handle is the handle of the cache [C, ...], and its shape the shape of the whole part. A
    record of the file has a row of the table and of each slot.

    Args:
        name: The name of the cache, which is the same in all processes.
        shape: The shape of the part, [N, ...].
        dtype: Its type.
        device: The TensorFlow device of the server.
        storage: The cache and the folder on the server.
        table: The part of the table of which this is a slot; None: this is the table.
        number: 0 for the table, s + 1 for slot s.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[Any],
        dtype: Any,
        device: str,
        storage: Tiered,
        table: PartInFile | None = None,
        number: int = 0,
    ) -> None:
        cached = storage.rows_in_memory(shape[0])
        super().__init__(name, [cached, *shape[1:]], dtype, device)
        self._of_cache, self.shape = self.shape, tf.TensorShape(shape)
        self.storage, self._number = storage, number
        self._table = self if table is None else table
        setattr(self, ROWS_IN_FILE, shape[0])

    def open(self, initial: float, slots: Sequence[Any], values: Sequence[float]) -> None:
        """Creates the file of a table, in the place of one that the server has for it.

        Args:
            initial: The value of all weights.
            slots: The slots of the table, which are in files as well.
            values: The initial value of each slot.

        Raises:
            ValueError: The server cannot create the file.
        """
        for each, value in zip((self, *slots), (initial, *values), strict=True):
            each._create_cache(value)
        storage = self.storage
        stem = re.sub(r"[^\w.-]+", "_", self.name)
        try:
            with tf.device(self.device):
                library.loaded.twml_open_server_rows(
                    self.handle,
                    tf.fill([self.shape[1]], tf.cast(initial, self.dtype)),
                    path=os.path.join(storage.path, stem),
                    num_rows=self.shape[0],
                    prefetch_rows=storage.rows_ahead(self.shape[0]),
                    policy=storage.policy,
                    direct=storage.direct,
                    io_uring=storage.io_uring,
                ).numpy()
                library.loaded.twml_attach_slots(
                    self.handle,
                    [slot.handle for slot in slots],
                    [tf.constant(value, tf.float32) for value in values],
                )
            self.wait()
        except tf.errors.UnknownError as e:
            if not re.search("the (file|folder) ", e.message):
                raise
            tf.experimental.async_clear_error()
            text = e.message.strip().splitlines()[0]
            raise ValueError(f"storage: {self.device} cannot have rows in a file: {text}") from e

    def _create_cache(self, value: float) -> None:
        self.destroy()  # it may have another size
        with tf.device(self.device):
            full = tf.fill(self._of_cache, tf.cast(value, self.dtype))
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=full)

    def value(self) -> tf.Tensor:
        """Raises an error, as `assign_add` and `assign_sub` do: all rows may not fit into memory.

        Raises:
            ValueError: Always.
        """
        raise self._refusal()

    def assign_add(self, value: Any) -> tf.Tensor:
        """See `value`."""
        raise self._refusal()

    def assign_sub(self, value: Any) -> tf.Tensor:
        """See `value`."""
        raise self._refusal()

    def _refusal(self) -> ValueError:
        return ValueError(f"{self.name} has its rows in a file: expected ops for some of the rows")

    def read(self, begin: int, end: int) -> tf.Tensor:
        """Reads the rows [begin, end) of the part, on its server."""
        with tf.device(self.device):
            rows: tf.Tensor = library.loaded.twml_read_tiered_rows(
                self._table.handle,
                tf.constant(begin, tf.int64),
                tf.constant(end - begin, tf.int64),
                part=self._number,
                dtype=self.dtype,
            )
        return rows

    def write(self, begin: int, values: Any) -> None:
        """Sets rows from one on, and waits for the server, so that it has few rows in memory.

        Args:
            begin: The first row.
            values: [count, ...], in this process or on the server.
        """
        with tf.device(self.device):
            library.loaded.twml_write_tiered_rows(
                self._table.handle,
                tf.constant(begin, tf.int64),
                self._cast(values),
                part=self._number,
            )
            library.loaded.twml_mark_changed_rows(
                self._table.handle, tf.zeros([0], tf.int64), all=True
            )
        self.wait()

    def slice_name(self, begin: int, end: int) -> str:
        """The rows [begin, end) as the ops of TensorFlow for bundles name a slice of a tensor."""
        shape, others = self.shape.as_list(), ":-" * (self.shape.rank - 1)
        return f"{' '.join(map(str, shape))} {begin},{end - begin}{others}"

    def pieces(self) -> Iterator[tuple[int, int]]:
        """The ranges of rows, begin and end, that are read or written at once.

        Yields:
            About 64 ranges of equal sizes, which have from 1 to 64 MiB.
        """
        rows, whole = self.shape[0], self.shape.num_elements() * self.dtype.size
        size = min(max(whole >> 6, 1 << 20), 64 << 20)
        step = max(1, size * rows // whole)
        for begin in range(0, rows, step):
            yield begin, min(begin + step, rows)

    def assign(self, value: Any) -> Any:
        """Sets all rows, some at a time.

        Args:
            value: An array or tensor [N, ...], in this process or on the server.
        """
        for begin, end in self.pieces():
            with tf.device(self.device):
                piece = value[begin:end]
            self.write(begin, piece)
        return value

    def fill(self, value: float) -> None:
        """Sets all elements to one number, some rows at a time."""
        for begin, end in self.pieces():
            with tf.device(self.device):
                piece = tf.fill([end - begin, *self.shape[1:]], tf.cast(value, self.dtype))
            self.write(begin, piece)

    def fetch_rows(self, begin: int, end: int) -> tf.Tensor:
        """Copies the rows [begin, end) to this process."""
        return tf.constant(self.read(begin, end).numpy())

    def fetch(self) -> tf.Tensor:
        """Copies all rows to this process."""
        return tf.concat([self.fetch_rows(*piece) for piece in self.pieces()], axis=0)

    def destroy(self) -> None:
        """Removes the cache, and with the one of a table its file."""
        if self._table is self:
            with tf.device(self.device):
                library.loaded.twml_close_server_rows(self.handle)
        super().destroy()

    def multiply(self, entries: ShardEntries, binary: bool) -> tf.Tensor:
        """See `RemoteVariable.multiply`. The rows of all distinct ids must fit into the cache."""
        product: tf.Tensor = library.twml_tiered_sparse_linear(
            *entries, self.handle, binary=binary, input_dim=self.shape[0]
        )
        return product

    def values_gradient(self, entries: ShardEntries, gradient: tf.Tensor) -> tf.Tensor:
        """See `RemoteVariable.values_gradient`."""
        found: tf.Tensor = library.twml_tiered_sparse_linear_values_grad(
            entries.ids, entries.row_splits, self.handle, gradient, input_dim=self.shape[0]
        )
        return found


def is_in_files(table: RemoteTable, division: Division, storage: Tiered | None) -> bool:
    """Tells whether the rows of a table are in files.

    Args:
        table: The table.
        division: Its parts.
        storage: The storage of all servers; None: there is none.

    Returns:
        Whether a part has more rows than the cache. Tables that give rows to ids by themselves have
        a fixed capacity, and are always in memory.
    """
    if storage is None or table.lookup is not None:
        return False
    return division.shape(0, *table.shape)[0] > storage.cache_rows


def put_in_files(
    table: RemoteTable,
    prefix: str,
    devices: Sequence[str],
    division: Division,
    storage: Tiered,
    optimizer: Any,
) -> None:
    """Creates the handles of the parts and slots of a table whose rows are in files.

    Args:
        table: The table.
        prefix: Prefix of the variables' names.
        devices: The devices of the servers.
        division: The parts and the numbers of their servers.
        storage: The storage of all servers.
        optimizer: The optimizer of the table.
    """
    table.division, table.shards, table.slots = division, [], []
    for part, server in enumerate(division.servers):
        # A server learns the ids of a batch when it needs them, so it reads nothing ahead.
        path = os.path.join(storage.path, f"server-{server}")
        own = dataclasses.replace(storage, path=path, prefetch_rows=0)
        name, device = f"{prefix}/{table.name}", devices[server]
        shard = PartInFile(name, division.shape(part, *table.shape), table.dtype, device, own)
        slots = optimizer.update_rule.slots(shard.shape, shard.dtype)
        table.shards.append(shard)
        table.slots.append(
            [
                PartInFile(f"{name}/{s.name}", s.shape, s.dtype, device, own, shard, i + 1)
                for i, s in enumerate(slots)
            ]
        )


def open_files(table: RemoteTable, optimizer: Any) -> None:
    """Creates the files of a table, with the initial values of slots and constant ones of weights.

    Args:
        table: The table; nothing happens if it is in memory.
        optimizer: The optimizer of the table.

    Raises:
        ValueError: A server cannot create a file.
    """
    rule = optimizer.update_rule
    values = [rule.initial_value(name) for name in rule.slot_names]
    for shard, slots in zip(table.shards, table.slots, strict=True):
        if isinstance(shard, PartInFile):
            shard.open(constant_of(table.initializer) or 0.0, slots, values)


def fill_files(table: RemoteTable) -> bool:
    """Assigns the initial values of a table to its files, some rows at a time.

    Args:
        table: The table, whose files have been opened.

    Returns:
        Whether the table is in files; nothing happens if it is in memory.
    """
    if not isinstance(table.shards[0], PartInFile):
        return False
    if table.was_trained:
        table.initialize()
    elif constant_of(table.initializer) is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of an initializer that is called twice
            shape = tuple(int(n) for n in table.shape)
            for begin, rows in initial_rows(table.initializer, shape, table.dtype.name):
                for part, shard in enumerate(table.shards):
                    first, end = table.division.rows_on(part, begin, begin + len(rows))
                    if end > first and isinstance(shard, PartInFile):
                        shard.write(first, table.division.slice(rows, part, 2, begin))
    return True
