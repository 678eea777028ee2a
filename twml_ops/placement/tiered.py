"""A table larger than memory: some of its rows are in memory, and all others in a file."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops._keras import in_stateless_scope, stateless_value
from twml_ops.ops._library import library, require_native
from twml_ops.ops._tape import tf_variable
from twml_ops.ops.tiered_rows import (
    CACHE_WAYS,
    RowPolicy,
    TieredRows,
    TierStatistics,
    tiered_sparse_linear,
)
from twml_ops.placement.base import (
    REPLICATED,
    AddWeight,
    Placement,
    check_whole_shape,
    current_placement,
    placement_of,
    placement_scope,
    set_placement,
)
from twml_ops.placement.entries import CsrEntries
from twml_ops.placement.initial_rows import constant_of, initial_rows
from twml_ops.placement.whole_values import show_whole

_PIECE_BYTES = 4 << 20
_MAX_FILES = 10_000
# Of `memory_bytes`; see cc/core/row_cache.h, row_read_ahead.h and row_store.h.
_PLACE_BYTES = 8 + 8 + 1 + 4 / CACHE_WAYS  # id, last use, changed, share of the set's counter
_SLOT_BYTES, _INDEX_BYTES = 40 + 4 + 4, 16
_SEGMENTS_IN_MEMORY, _SEGMENT_BYTES = 6 + 4, 256 << 10
_READS, _PAGE = 64, 4096


@dataclasses.dataclass(frozen=True)
class Tiered:
    """Keeps the rows of a table in a file, with a cache of some rows in memory.

    Each row of the file has the weights and the optimizer's slots. A row that a batch needs is read
    into the cache, where it is used and updated; a changed row that leaves the cache is written
    back in the background. Results are bit for bit the same as with a table in memory. The cache is
    set-associative, with sets of 16 rows. All distinct ids of a batch must fit into it.

    The file is scratch memory of the running process: save the model, or write checkpoints.

    Args:
        path: folder for the files, on a fast local disk. It is created if it does not exist. Each
            table has a file of its own, about 1.3 times as large as the table with its slots, which
            is removed with the table. Files that a killed process left are used again.
        cache_rows: number of rows in memory, at least 1; it is rounded up to a multiple of 16. A
            layer with several tables divides them in proportion to the numbers of rows.
        prefetch_rows: how many rows are read ahead at most; see `layers.prefetch_rows`. Default: a
            quarter of `cache_rows`.
        policy: which row leaves the cache: "lru", the default: the least recently used one. "lfu":
            the one that the fewest batches used since it is in the cache; of several, the least
            recently used one.
        direct: whether to read and write past the page cache, so that the memory of the process is
            all memory that the table takes. File systems that cannot do that use the page cache.
        io_uring: whether to use io_uring, where the system has and permits it. Otherwise 16 threads
            read and write.

    Raises:
        ValueError: an argument is out of its range.
    """

    path: str
    cache_rows: int
    prefetch_rows: int | None = None
    policy: RowPolicy = "lru"
    direct: bool = True
    io_uring: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if int(self.cache_rows) != self.cache_rows or self.cache_rows < 1:
            raise ValueError(f"cache_rows must be a positive integer, got {self.cache_rows!r}")
        if self.prefetch_rows is not None and (
            int(self.prefetch_rows) != self.prefetch_rows or self.prefetch_rows < 0
        ):
            raise ValueError(
                f"prefetch_rows must be a non-negative integer or None, got {self.prefetch_rows!r}"
            )
        if self.policy not in ("lru", "lfu"):
            raise ValueError(f'policy must be "lru" or "lfu", got {self.policy!r}')

    def get_config(self) -> dict[str, Any]:
        """The arguments, for the config of a layer.

        Returns:
            The arguments by name.
        """
        return dataclasses.asdict(self)

    def memory_bytes(self, num_rows: int, row_bytes: int) -> int:
        """The memory that a table takes, at most: the rows of its cache and the rows that are read
        ahead, with what is known of each; the place of each row in the file; and the buffers of
        reads and writes. The gradients and sorted ids of a step are not part of it.

        Args:
            num_rows: N, rows of the table.
            row_bytes: bytes of a row with its slots.

        Returns:
            Bytes.
        """
        cached, ahead = self.rows_in_memory(num_rows), self.rows_ahead(num_rows)
        record = row_bytes + 8
        cache = cached * (row_bytes + _PLACE_BYTES + (8 if ahead else 0))
        index = _INDEX_BYTES << (2 * ahead).bit_length()
        staged = ahead * (row_bytes + _SLOT_BYTES) + index
        segment = max(min(num_rows // 256 * record, _SEGMENT_BYTES), record)
        segment = -(-segment // _PAGE) * _PAGE
        reads = _READS * (-(-record // _PAGE) * _PAGE + _PAGE)
        return int(cache + staged + 4 * num_rows + _SEGMENTS_IN_MEMORY * segment + reads)

    def rows_in_memory(self, num_rows: int) -> int:
        """The rows of the cache of a table.

        Args:
            num_rows: N, rows of the table.

        Returns:
            `cache_rows` or N, rounded up to a multiple of 16.
        """
        return -(-min(self.cache_rows, num_rows) // CACHE_WAYS) * CACHE_WAYS

    def rows_ahead(self, num_rows: int) -> int:
        """How many rows of a table are read ahead at most.

        Args:
            num_rows: N, rows of the table.

        Returns:
            `prefetch_rows`, at most N.
        """
        default = self.rows_in_memory(num_rows) // 4
        return min(default if self.prefetch_rows is None else self.prefetch_rows, num_rows)

    def share(self, num_rows: int, of: int) -> Tiered:
        """The storage of one of several tables.

        Args:
            num_rows: rows of the table.
            of: rows of all tables together.

        Returns:
            A storage with its part of the rows in memory.
        """
        ahead = self.prefetch_rows
        return dataclasses.replace(
            self,
            cache_rows=max(1, self.cache_rows * num_rows // of),
            prefetch_rows=None if ahead is None else ahead * num_rows // of,
        )


class TieredPlacement(Placement):
    """The rows of a table are in a file; a variable [C, D] is the cache of C rows.

    The variable is no table: reading or writing it raises an error. Gradients have ids of the table
        [N, D].

    Args:
        storage: where the rows are.
    """

    is_sharded = True
    in_file = True

    @property
    def splits_gradients(self) -> bool:
        """False: the gradient has the rows of all ids."""
        return False

    def __init__(self, storage: Tiered) -> None:
        self.storage = storage
        self.shape: tuple[int, int] = (0, 0)
        self._initializer: Any = None
        self._variable: Any = None
        self._name = ""
        self._dtype = "float32"
        self._rows: TieredRows | None = None
        self._pending_slots: tuple[Sequence[Any], Sequence[float]] | None = None
        self._filled = False

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """See `Placement.create`. The variable has the shape of the cache.

        Raises:
            ValueError: there are several replicas, or tables are on parameter servers or TPUs.
            NotImplementedError: the op library is not loaded, or the graph is of version 1.
        """
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1 or type(strategy) is tf.distribute.MirroredStrategy:
            raise ValueError(
                f"storage=Tiered(...) is for one process without replicas, got {strategy}; use "
                'placement="sharded" or larger memory with tf.distribute'
            )
        if current_placement() is not REPLICATED:
            raise ValueError(
                "storage=Tiered(...) of a layer cannot be used for tables on parameter servers or "
                "TPUs; use the argument `storage` of HybridTrainer for parameter servers"
            )
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise NotImplementedError(
                "storage=Tiered(...) cannot be used in a graph of version 1, as of tf.estimator"
            )
        require_native("storage=Tiered(...)")
        place = TieredPlacement(self.storage)
        place.shape = (int(shape[0]), int(shape[1]))
        place._initializer, place._name, place._dtype = initializer, name, dtype
        cache = (self.storage.rows_in_memory(place.shape[0]), place.shape[1])
        variable = place._variable = add(cache, tf.keras.initializers.Zeros())
        show_whole(variable, place)
        return variable

    def sparse_linear(self, entries: CsrEntries, table: Any) -> tf.Tensor:
        """See `Placement.sparse_linear`.

        Raises:
            NotImplementedError: The layer runs in Keras 3's `stateless_call`, or is compiled.
        """
        if stateless_value(table) is not None:
            raise NotImplementedError(
                "stateless_call takes whole tables, but the rows of this one are in a file"
            )
        ids, values, row_splits = entries
        if in_stateless_scope():  # Keras looks at shapes only
            width = self.shape[1]
            return tf.zeros([tf.shape(row_splits)[0] - 1, width])
        self._open()
        return tiered_sparse_linear(ids, values, row_splits, table, self.shape[0])

    def attach_slots(
        self, table: Any, slots: Sequence[Any], initial_values: Sequence[float]
    ) -> Any:
        """See `Placement.attach_slots`."""
        if tf.executing_eagerly() and not all(is_initialized(tf_variable(s)) for s in slots):
            return None  # a step is being traced, which will attach them
        if not tf.executing_eagerly() or self._rows is not None:
            return self._open().attach_slots(slots, initial_values)
        self._pending_slots = (slots, initial_values)
        self._open()
        return None

    def rows(self, table: Any) -> TieredRows:
        """The rows of the table.

        Args:
            table: the variable that `create` has returned.

        Returns:
            The rows, in a file that has been created.
        """
        return self._open()

    def statistics(self, table: Any) -> TierStatistics:
        """Counts of lookups, misses, reads and writes since the file was created.

        Args:
            table: the variable that `create` has returned.

        Returns:
            The counts.
        """
        return self._open().statistics()

    def prefetch(self, ids: Any, table: Any) -> tf.Tensor:
        """Announces the ids of a later product; see `TieredRows.prefetch`.

        Args:
            ids: integers, each in [0, N).
            table: the variable that `create` has returned.

        Returns:
            int64 scalar, the number of ids.
        """
        return self._open().prefetch(ids)

    def begin_with(self, initializer: Any) -> None:
        """Replaces the initializer of a table that has no file yet.

        Args:
            initializer: The initializer of the whole table.
        """
        self._initializer = initializer

    def num_weights(self) -> int:
        """The number of weights of the whole table.

        Returns:
            N · D.
        """
        return self.shape[0] * self.shape[1]

    def whole_shape(self, variable: Any) -> tuple[int, ...]:
        """See `Placement.whole_shape`."""
        return self.shape[0], *tf_variable(variable).shape[1:]

    def read(self, variable: Any) -> tf.Tensor:
        """See `Placement.read`. The whole table must fit into memory."""
        return self._open().read(0, self.shape[0], self._part_of(variable))

    def pieces(self, variable: Any) -> Iterator[tf.Tensor]:
        """Reads the table, or one of its slots, some rows at a time.

        Args:
            variable: the variable that `create` has returned, or one of its slots.

        Yields:
            Rows [count, ...], at most 4 MiB, in order.
        """
        rows, part = self._open(), self._part_of(variable)
        for begin, count in self._ranges(rows, part):
            yield rows.read(begin, count, part)

    def assign(self, variable: Any, table: Any) -> None:
        """See `Placement.assign`. The rows are written in pieces; slots of a table do not change.

        Args:
            variable: the variable that `create` has returned, or one of its slots.
            table: an array or tensor [N, ...], of which slices are taken.

        Raises:
            ValueError: `table` has another shape. Nothing is changed.
        """
        check_whole_shape(table, self.whole_shape(variable), f"the variable {variable.name}")
        fresh, part = self._rows is None, 0
        if fresh:
            self._filled = True  # not with initial values
        try:
            rows, part = self._open(), self._part_of(variable)
            for begin, count in self._ranges(rows, part):
                rows.write(begin, table[begin : begin + count], part)
        except BaseException:
            if fresh:
                self._filled = False
                self._fill(self._rows)
            raise

    def _part_of(self, variable: Any) -> int:
        """0 for the table, s + 1 for slot s."""
        assert self._rows is not None
        wanted = tf_variable(variable)
        return next(i for i, part in enumerate(self._rows.variables) if part is wanted)

    def _ranges(self, rows: TieredRows, part: int) -> Iterator[tuple[int, int]]:
        variable = rows.variables[part]
        width = max(1, variable.shape.num_elements() // variable.shape[0]) * variable.dtype.size
        per_piece = max(1, _PIECE_BYTES // width)
        for begin in range(0, self.shape[0], per_piece):
            yield begin, min(per_piece, self.shape[0] - begin)

    def _open(self) -> TieredRows:
        """Creates the file if there is none, with the initial values."""
        if self._rows is not None:
            return self._rows
        table = tf_variable(self._variable)
        if table is not self._variable:  # Keras has created it after `create`
            set_placement(table, self)
        constant = constant_of(self._initializer)
        with tf.init_scope(), library.on_host():
            if not isinstance(table, tf.Variable) or not is_initialized(table):
                raise ValueError(
                    f"the table {self._name!r} has no value yet: build the layer before it is "
                    "called in a tf.function"
                )
            rows = _open_free_file(
                self.storage,
                self._name,
                table,
                self.shape[0],
                tf.fill([self.shape[1]], tf.cast(constant or 0.0, self._dtype)),
            )
            if self._pending_slots is not None:
                rows.attach_slots(*self._pending_slots)  # while the file is empty
            self._fill(rows)
        self._rows, self._pending_slots = rows, None
        return rows

    def _fill(self, rows: TieredRows | None) -> None:
        """Gives all rows their initial values, unless they have got others."""
        if rows is None or self._filled:
            return
        if constant_of(self._initializer) is None:
            with tf.init_scope(), library.on_host():
                for begin, values in initial_rows(self._initializer, self.shape, self._dtype):
                    rows.write(begin, values)
        self._filled = True


class LargeTables(Placement):
    """Tables with more rows than the cache have them in files; the others are in memory.

    For `placement_scope`, with models whose layers have no argument `storage`.

    Args:
        storage: the storage of each table with more than `storage.cache_rows` rows.
    """

    def __init__(self, storage: Tiered) -> None:
        self._storage = storage

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """See `Placement.create` and `TieredPlacement.create`."""
        large = int(shape[0]) > self._storage.cache_rows
        place = TieredPlacement(self._storage) if large else REPLICATED
        with placement_scope(REPLICATED):
            return place.create(add, shape, initializer, name, dtype)


def is_initialized(variable: tf.Variable) -> bool:
    """Whether a variable has a value; one that is created in a `tf.function` gets it later.

    Args:
        variable: of TensorFlow.
    """
    with tf.init_scope():
        return bool(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))


def _open_free_file(
    storage: Tiered, name: str, table: tf.Variable, num_rows: int, initial: tf.Tensor
) -> TieredRows:
    """Opens a file in the folder that no other table uses."""
    folder = Path(storage.path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ValueError(f"storage: the folder {folder} cannot be created: {e.strerror}") from e
    stem = re.sub(r"[^\w.-]+", "_", name)
    for number in itertools.count():
        end = "" if number == 0 else f"-{number}"
        try:
            return TieredRows(
                table,
                num_rows,
                str(folder / f"{stem}{end}.rows"),
                initial,
                prefetch_rows=storage.rows_ahead(num_rows),
                policy=storage.policy,
                direct=storage.direct,
                io_uring=storage.io_uring,
            )
        except tf.errors.UnknownError as e:
            if "is in use by another table" not in e.message or number == _MAX_FILES:
                raise
    raise AssertionError


def storage_placement(storage: Tiered | None, share: tuple[int, int] | None = None) -> Placement:
    """Returns the placement of a new table with a `storage` argument.

    Args:
        storage: the argument; None: in memory.
        share: (rows of the table, rows of all tables of the layer), if there are several.

    Returns:
        A `TieredPlacement`, or `current_placement()` without a storage.
    """
    if storage is None:
        return current_placement()
    return TieredPlacement(storage if share is None else storage.share(*share))


def storage_of(argument: Tiered | Mapping[str, Any] | None) -> Tiered | None:
    """The `storage` argument of a layer, which may be the config of a `Tiered`.

    Args:
        argument: the argument of the layer.

    Returns:
        The storage, or None.

    Raises:
        ValueError: it is something else.
    """
    if argument is None or isinstance(argument, Tiered):
        return argument
    if isinstance(argument, Mapping):
        return Tiered(**argument)
    raise ValueError(f"storage must be a Tiered or None, got {argument!r}")


def tiered_placement_of(variable: Any) -> TieredPlacement | None:
    """The placement of a table whose rows are in a file; None for other variables.

    Args:
        variable: of Keras or TensorFlow.
    """
    place = placement_of(variable)
    return place if isinstance(place, TieredPlacement) else None
