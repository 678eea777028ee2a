"""The rows of a table that changed since somebody copied them: for checkpoints and for servers."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops.ops._library import is_native, library
from twml_ops.ops._tape import has_kernel_for, tf_variable

_COMPARED = "_twml_rows_are_compared"  # attribute of a variable that writers without marks update
_WATCHED = "_twml_marks_rows_of"  # attribute of a variable: the tables whose rows its writes mark
_KEY = secrets.randbits(128)  # of the digests of this process
_PIECE = 1 << 16  # rows that are converted at once
VARIABLE_WRITES = (
    *("assign", "assign_add", "assign_sub", "batch_scatter_update"),
    *(f"scatter_{kind}" for kind in ("add", "div", "max", "min", "mul", "sub", "update")),
    *(f"scatter_nd_{kind}" for kind in ("add", "max", "min", "sub", "update")),
)
"""The methods of `tf.Variable` that write it."""


class TakenRows:
    """Copies of rows that changed, all of one moment. `ChangedRows.take` makes them.

    Args:
        ids: int64 [C], the rows in ascending order; None for all rows. Also an attribute.
        rows: Tensor [C, ...] for each variable, or [N, ...] if `ids` is None. Also an attribute.
        keep: called by the method `keep`.
    """

    def __init__(
        self, ids: np.ndarray | None, rows: Sequence[tf.Tensor], keep: Callable[[], None]
    ) -> None:
        self.ids = ids
        self.rows = tuple(rows)
        self._keep = keep

    def keep(self) -> None:
        """Confirms that the consumer has the rows, so that it does not get them again.

        Without this call the next `take` returns them again, with rows that changed since. That is
        what gives rows back when writing or sending them fails.
        """
        self._keep()


class ChangedRows:
    """The changed rows of one table, for one consumer.

    Any number of consumers can follow the same table, each at its own pace. The first `take` of
    each returns all rows.

    The kernels of this package that write tables (fused updates, those by slices, normalizations)
    mark the rows in the same moment, under the lock of the table, so rows are neither lost nor torn
    when training steps run in other threads, Hogwild included. A record takes 5 bytes for each row
    of the table. Assignments mark all rows: `load_weights`, the methods of
    `tf.Variable`, and restoring a `tf.train.Checkpoint`. A function that assigns to the table in
    place by TensorFlow ops must be traced after this object is made.

    Some writers do not mark rows: stock TensorFlow ops in place of the op library, those on a GPU,
    and code compiled by XLA. Tables that they write are compared with two 64-bit digests of each
    row instead, at the time of `take`; it then reads the whole table. A change stays unseen with a
    probability of at most 2^-64 a row.

    Args:
        variables: The table [N, ...], and variables with one row for each of its rows, such as its
            slots. `tf.Variable` or variables of Keras 3; of a mirrored variable, one replica's.

    Raises:
        ValueError: No variable is given, or the first dimensions differ.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = [tf_variable(v) for v in variables]
        if not self._variables:
            raise ValueError("variables must be a table and its slots, got none")
        sizes = [v.shape[0] if v.shape.rank else None for v in self._variables]
        if None in sizes or len(set(sizes)) > 1:
            raise ValueError(
                "variables must have a first dimension of the same size, got shapes "
                + ", ".join(str(tuple(v.shape)) for v in self._variables)
            )
        self._consumer = tf.constant(secrets.randbits(62), tf.int64)
        self._digests: np.ndarray | None = None
        self._is_open = True
        if self._can_be_marked():
            for variable in self._variables:
                _mark_after_writes(variable, self._variables[0])

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The table and the variables beside it, as variables of TensorFlow."""
        return tuple(self._variables)

    def take(self) -> TakenRows:
        """Copies the rows that changed since the last ones that were kept.

        Returns:
            The rows.

        Raises:
            tf.errors.ResourceExhaustedError: There is no memory for the copy.
            ValueError: The object is closed.
        """
        if not self._is_open:
            raise ValueError("the changed rows of a table cannot be taken after close()")
        return self._marked() if self._can_be_marked() else self._compared()

    def close(self) -> None:
        """Ends the record of this consumer; without consumers, marking costs nothing."""
        if self._is_open and self._can_be_marked():
            table = self._variables[0]
            with tf.init_scope(), tf.device(table.device):
                library.loaded.twml_release_changed_rows(table.handle, self._consumer)
        self._is_open = False

    def _can_be_marked(self) -> bool:
        if not is_native() or any(getattr(v, _COMPARED, False) for v in self._variables):
            return False
        return all(has_kernel_for(v) for v in self._variables)

    def _marked(self) -> TakenRows:
        table = self._variables[0]
        with tf.init_scope(), tf.device(table.device):
            ids, everything, interval, rows = library.loaded.twml_take_changed_rows(
                [v.handle for v in self._variables],
                self._consumer,
                dtypes=[v.dtype for v in self._variables],
            )

        def keep() -> None:
            with tf.init_scope(), tf.device(table.device):
                library.loaded.twml_keep_changed_rows(table.handle, self._consumer, interval)

        return TakenRows(None if everything.numpy() else ids.numpy(), rows, keep)

    def _compared(self) -> TakenRows:
        with tf.init_scope():
            values = [v.read_value() for v in self._variables]
        now = np.add.reduce([_digests(value, i) for i, value in enumerate(values)])
        before = self._digests
        if before is None:
            ids, rows = None, values
        else:
            ids = np.flatnonzero((now != before).any(axis=1))
            rows = [tf.gather(value, ids) for value in values]

        def keep() -> None:
            self._digests = now

        return TakenRows(ids, rows, keep)


def writes_unmarked(variables: Sequence[Any]) -> None:
    """Remembers that variables are written by ops that do not mark rows.

    Args:
        variables: A table and its slots.
    """
    for variable in variables:
        of_tf = tf_variable(variable)
        for each in (of_tf, *getattr(of_tf, "values", ())):
            setattr(each, _COMPARED, True)


def mark_all(table: tf.Variable) -> None:
    """Marks all rows of a table as changed, now or when the function that is traced runs.

    Args:
        table: On a device of which the op library has kernels.
    """
    with tf.device(table.device):
        library.loaded.twml_mark_changed_rows(table.handle, tf.zeros([0], tf.int64), all=True)


def mark_rows(table: tf.Variable, ids: Any) -> None:
    """Marks rows of a table as changed. Does nothing where writers do not mark rows.

    Args:
        table: The table.
        ids: int64 [E], the rows.
    """
    if is_native() and has_kernel_for(table):
        with tf.device(table.device):
            library.loaded.twml_mark_changed_rows(table.handle, ids, all=False)


def _mark_after_writes(variable: tf.Variable, table: tf.Variable) -> None:
    """Lets the methods that write `variable` mark all rows of `table`."""
    watched: list[weakref.ref[Any]] | None = getattr(variable, _WATCHED, None)
    if watched is None:
        watched = []
        setattr(variable, _WATCHED, watched)
        for name in VARIABLE_WRITES:
            if hasattr(type(variable), name):
                setattr(variable, name, _marking(getattr(type(variable), name), variable))
    if all(each() is not table for each in watched):
        watched.append(weakref.ref(table))


def _marking(method: Callable[..., Any], variable: tf.Variable) -> Callable[..., Any]:
    # A reference to the variable in its own attribute would keep it alive.
    of = weakref.ref(variable)

    def write(*args: Any, **kwargs: Any) -> Any:
        written = of()
        result = method(written, *args, **kwargs)
        for each in getattr(written, _WATCHED):
            table = each()
            if table is not None:
                mark_all(table)
        return result

    return write


def _digests(value: tf.Tensor, number: int) -> np.ndarray:
    """Two 64-bit digests of each row, uint64 [N, 2]: multilinear hashes with random keys.

    They add up over the variables of a table, because each has keys of its own.
    """
    array = np.asarray(value.numpy())
    items = np.ascontiguousarray(array.reshape(len(array), -1)).view(np.uint8)
    words = np.pad(items, ((0, 0), (0, -items.shape[1] % 4))).view(np.uint32)
    keys = np.random.default_rng([_KEY, number]).integers(
        2**64, size=(words.shape[1], 2), dtype=np.uint64
    )
    out = np.empty((len(array), 2), np.uint64)
    for start in range(0, len(array), _PIECE):
        out[start : start + _PIECE] = words[start : start + _PIECE].astype(np.uint64) @ keys
    return out
