"""Tables larger than memory: a variable has some of the rows, and a file has the others."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from twml_ops.ops._csr_inputs import csr_inputs
from twml_ops.ops._gradients import needs_gradient, register_gradient
from twml_ops.ops._library import library
from twml_ops.ops._tape import check_not_written_since, device_scope_of, table_handle, tf_variable
from twml_ops.ops.changed_rows import VARIABLE_WRITES, mark_all
from twml_ops.ops.sparse_linear import weights_grad

RowPolicy = Literal["lru", "lfu"]
CACHE_WAYS = 16
"""The number of rows of a cache is a multiple of this one."""
_IS_CACHE = "_twml_is_cache_of"  # attribute of a variable that has only some rows
ROWS_IN_FILE = "_twml_rows_in_file"
"""The attribute of the variable of a table that has the number of rows in the file."""
_READS = ("value", "read_value", "numpy")
_SAVES = ("_serialize_to_tensors", "_export_to_saved_model_graph")  # of checkpoints, SavedModels


class TierStatistics(NamedTuple):
    """Counts since a table was opened.

    Attributes:
        lookups: products with the table.
        rows: distinct rows of each lookup, added up.
        misses: rows of lookups that were not in the cache.
        prefetched: misses whose row had been read ahead, or was being read.
        prefetches: rows that were read ahead.
        written_back: changed rows that left the cache.
        rows_read: single rows that were read from the file.
        bytes_read: from the file.
        bytes_written: to the file, including rows that were moved within it.
        direct: 1 if the file is read and written past the page cache.
        io_uring: 1 if requests are submitted with io_uring.
    """

    lookups: int
    rows: int
    misses: int
    prefetched: int
    prefetches: int
    written_back: int
    rows_read: int
    bytes_read: int
    bytes_written: int
    direct: int
    io_uring: int


class TieredRows:
    """The rows of a table [N, D], of which a variable [C, D] is the cache.

    The file is scratch memory of the process. It is removed when the object is no longer used, and
    a file that a killed process left is replaced.

    Args:
        table: variable float32 or bfloat16 [C, D]; C is a multiple of `CACHE_WAYS`.
        num_rows: N.
        path: the path of the file.
        initial: [D], the content of rows that were not written.
        prefetch_rows: how many rows are read ahead at most.
        policy: which row leaves the cache: "lru", the least recently used one, or "lfu", the one
            that the fewest lookups used since it is in the cache.
        direct: whether to read and write past the page cache, if the file system can do that.
        io_uring: whether to use io_uring, if the system has it.

    Raises:
        tf.errors.UnknownError: the file cannot be created, or is in use.
    """

    def __init__(
        self,
        table: Any,
        num_rows: int,
        path: str,
        initial: Any,
        *,
        prefetch_rows: int = 0,
        policy: RowPolicy = "lru",
        direct: bool = True,
        io_uring: bool = True,
    ) -> None:
        self._table = tf_variable(table)
        self.num_rows = num_rows
        self.path = path
        self._parts = [self._table]
        self._traced: tuple[Sequence[Any], Sequence[float]] | None = None  # slots of a function
        with tf.init_scope(), device_scope_of(self._table):
            self._handle = library.loaded.twml_open_tiered_rows(
                self._table.handle,
                tf.cast(initial, self._table.dtype),
                path=path,
                num_rows=num_rows,
                prefetch_rows=prefetch_rows,
                policy=policy,
                direct=direct,
                io_uring=io_uring,
            )
        setattr(self._table, ROWS_IN_FILE, num_rows)
        _refuse_access(self._table, (*_READS, *VARIABLE_WRITES, *_SAVES))

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The variables [C, ...] of the table and of its slots."""
        return tuple(self._parts)

    def attach_slots(self, slots: Sequence[Any], initial_values: Sequence[float]) -> Any:
        """Keeps the rows of an optimizer's slots beside the rows of the table.

        Slots that are attached already keep their values, and nothing happens. Otherwise the file
        is written again, and the slots get their initial values.

        Args:
            slots: variables float32 [C, ...].
            initial_values: the initial values of each slot.

        Returns:
            The operation, or None in eager mode.

        Raises:
            tf.errors.UnknownError: the disk has no room for the new file, which is written before
                the old one is removed.
        """
        of_tf = [tf_variable(slot) for slot in slots]
        with device_scope_of(self._table):
            values = [tf.constant(value, tf.float32) for value in initial_values]
            done = library.twml_attach_slots(self._handle, [s.handle for s in of_tf], values)
        for slot in of_tf:
            _refuse_access(slot, _READS)  # TensorFlow assigns initial values after tracing
        self._parts = [self._table, *of_tf]
        self._traced = None if tf.executing_eagerly() else (slots, initial_values)
        return done

    def _attach_traced(self, part: int) -> None:
        """Attaches the slots of a function that was traced and may not have run yet."""
        if part and self._traced is not None and tf.executing_eagerly():
            self.attach_slots(*self._traced)

    def prefetch(self, ids: Any) -> tf.Tensor:
        """Announces the ids of a later product, so that their rows are read ahead.

        It has no influence on results. Call it for the products in their order.

        Args:
            ids: int32 or int64 of any shape, each in [0, N).

        Returns:
            int64 scalar, the number of ids.

        Raises:
            tf.errors.InvalidArgumentError: an id is out of range.
        """
        ids = tf.convert_to_tensor(ids, dtype_hint=tf.int64)
        with device_scope_of(self._table):
            count: tf.Tensor = library.twml_prefetch_rows(self._handle, tf.reshape(ids, [-1]))
        return count

    def read(self, begin: Any, count: Any, part: int = 0) -> tf.Tensor:
        """Reads neighboring rows.

        Args:
            begin: integer scalar, the first row.
            count: integer scalar, the number of rows.
            part: 0 for the table, s + 1 for slot s.

        Returns:
            [count, ...].

        Raises:
            tf.errors.UnknownError: the file cannot be read.
        """
        self._attach_traced(part)
        variable = self._parts[part]
        with device_scope_of(self._table):
            rows: tf.Tensor = library.twml_read_tiered_rows(
                self._handle,
                tf.cast(begin, tf.int64),
                tf.cast(count, tf.int64),
                part=part,
                dtype=variable.dtype,
            )
        return rows

    def write(self, begin: Any, values: Any, part: int = 0) -> None:
        """Sets neighboring rows, and marks all rows as changed.

        Args:
            begin: integer scalar, the first row.
            values: [count, ...].
            part: 0 for the table, s + 1 for slot s.

        Raises:
            tf.errors.UnknownError: the file cannot be written.
        """
        self._attach_traced(part)
        with device_scope_of(self._table):
            values = tf.cast(values, self._parts[part].dtype)
            library.twml_write_tiered_rows(
                self._handle, tf.cast(begin, tf.int64), values, part=part
            )
            mark_all(self._table)

    def statistics(self) -> TierStatistics:
        """Counts since the table was opened.

        Returns:
            The counts.
        """
        with tf.init_scope(), device_scope_of(self._table):
            counts = library.loaded.twml_tiered_statistics(self._handle)
        return TierStatistics(*(int(n) for n in counts.numpy()))


def tiered_sparse_linear(
    ids: Any, values: Any, row_splits: Any, table: Any, num_rows: int
) -> tf.Tensor:
    """`sparse_linear` with a table that has `TieredRows`.

    The gradient by the table is `tf.IndexedSlices` of shape [N, D], as that of a whole table.

    Args:
        ids: int32 or int64 [K], each in [0, N).
        values: float32 [K], or None for a binary batch (all 1).
        row_splits: int64 [B + 1], CSR offsets.
        table: the variable [C, D].
        num_rows: N.

    Returns:
        float32 [B, D].

    Raises:
        tf.errors.InvalidArgumentError: an id is out of range, `row_splits` is invalid, or the
            distinct ids do not fit into the cache.
        tf.errors.UnknownError: the file cannot be read or written.
    """
    ids, values, row_splits, binary = csr_inputs(ids, values, row_splits)
    out: tf.Tensor = library.twml_tiered_sparse_linear(
        ids, values, row_splits, table_handle(table), binary=binary, input_dim=num_rows
    )
    return out


@register_gradient("Twml>TieredSparseLinear")
def _tiered_sparse_linear_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, values, row_splits, handle = op.inputs
    binary, num_rows = op.get_attr("binary"), op.get_attr("input_dim")
    by_values = None
    if not binary and needs_gradient(op, 1):
        check_not_written_since(op.outputs[0], handle)
        by_values = library.twml_tiered_sparse_linear_values_grad(
            ids, row_splits, handle, grad, input_dim=num_rows
        )
    shape = _shape(num_rows, grad)
    by_table = weights_grad(ids, values, row_splits, grad, shape, binary, handle, num_rows)
    return [None, by_values, None, by_table]


@register_gradient("Twml>TieredSparseLinearValuesGrad")
def _tiered_values_grad_grad(op: Any, grad: tf.Tensor) -> list[Any]:
    ids, row_splits, handle, of_output = op.inputs
    num_rows = op.get_attr("input_dim")
    by_table = by_gradient = None
    if needs_gradient(op, 2):
        shape = _shape(num_rows, of_output)
        by_table = weights_grad(ids, grad, row_splits, of_output, shape, False, handle, num_rows)
    if needs_gradient(op, 3):
        by_gradient = library.twml_tiered_sparse_linear(
            ids, grad, row_splits, handle, input_dim=num_rows
        )
    return [None, None, by_table, by_gradient]


def _shape(num_rows: int, like: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.constant(num_rows, tf.int64), tf.shape(like, out_type=tf.int64)[1]])


def is_cache(variable: Any) -> bool:
    """Whether a variable has only some rows of a table or a slot, the others being in a file.

    Args:
        variable: of TensorFlow or Keras.
    """
    return bool(getattr(tf_variable(variable), _IS_CACHE, False))


def rows_in_file(variable: Any) -> int | None:
    """The number of rows of the table of which a variable is the cache.

    Args:
        variable: of TensorFlow or Keras.

    Returns:
        N; None if the variable is a whole table.
    """
    num_rows: int | None = getattr(tf_variable(variable), ROWS_IN_FILE, None)
    return num_rows


def _refuse_access(variable: tf.Variable, methods: Sequence[str]) -> None:
    """Makes methods that read or write the whole variable raise."""
    if is_cache(variable):
        return
    setattr(variable, _IS_CACHE, True)
    for name in methods:
        if hasattr(type(variable), name):
            setattr(variable, name, _refusing(name, variable))


def _refusing(method: str, variable: tf.Variable) -> Callable[..., Any]:
    of = weakref.ref(variable)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        found = of()
        name = found.name if found is not None else ""
        if method in _SAVES:
            raise ValueError(
                f"the variable {name} cannot be in a TensorFlow checkpoint or SavedModel: it is "
                "the cache of a table whose rows are in a file; save the model, or its weights, as "
                ".keras or .weights.h5, which hold the whole table, and load the weights into a "
                "model without storage"
            )
        raise ValueError(
            f"{method} is not possible for the variable {name}: it is the cache of a table whose "
            "rows are in a file; use placement.placement_of(variable).read(variable) and .assign("
            "variable, table), and an optimizer of twml_ops.optimizers"
        )

    return refuse


for _name in ("PrefetchRows", "OpenTieredRows", "ReadTieredRows", "TieredStatistics"):
    tf.no_gradient(f"Twml>{_name}")
