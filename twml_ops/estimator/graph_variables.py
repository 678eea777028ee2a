"""The variables of a graph of version 1, as `twml_ops.checkpoint` saves and restores them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops.checkpoint import CheckpointError
from twml_ops.estimator.optimizer import TABLES
from twml_ops.ops import TakenRows
from twml_ops.ops._library import library

v1: Any = tf.compat.v1
GetSession = Callable[[], Any]
_TYPES_WITHOUT_VALUES = (tf.string, tf.variant, tf.resource)


class GraphVariable:
    """A variable of a graph; see `twml_ops.checkpoint.NamedVariable`.

    Args:
        variable: the variable of the current graph, which is not finalized.
        session: returns the session in which it has its value.
        table: name of the table, if it is one with changed rows or a slot of one.

    Attributes:
        name: the name of the variable in the graph.
        label: the same.
        variable: the variable.
        shape: its shape.
        table: name of the table; otherwise empty.

    Raises:
        CheckpointError: values of its type cannot be saved.
    """

    def __init__(self, variable: Any, session: GetSession, table: str) -> None:
        if variable.dtype.base_dtype in _TYPES_WITHOUT_VALUES:
            raise CheckpointError(
                f"{variable.op.name}: values of {variable.dtype.name} cannot be saved"
            )
        self.name = self.label = variable.op.name
        self.variable, self.table = variable, table
        self.shape = tuple(variable.shape.as_list())
        self._session = session
        self._read = variable.read_value()
        self._value = v1.placeholder(variable.dtype.base_dtype, variable.shape)
        self._assign = v1.assign(variable, self._value).op
        self._rows: _RowOps | None = None

    def follow(self, others: Sequence[GraphVariable]) -> None:
        """Makes the ops that take the changed rows of this table.

        Args:
            others: its slots.
        """
        self._rows = _RowOps([self.variable, *(each.variable for each in others)])

    def changed_rows(self, group: Sequence[GraphVariable]) -> GraphChangedRows:
        """The changed rows of this table for a new consumer.

        Args:
            group: the table and its slots.

        Returns:
            The rows of `follow`.
        """
        assert self._rows is not None
        return GraphChangedRows(self._rows, [v.variable for v in group], self._session())

    def view(self) -> np.ndarray:
        """The current value.

        Returns:
            A copy of it.
        """
        return np.asarray(self._session().run(self._read))

    def fits(self, dtype: str, shape: Sequence[int]) -> bool:
        """Whether the variable can have a value of this type and shape.

        Args:
            dtype: name of the type of an element.
            shape: sizes of all dimensions.

        Returns:
            Whether the variable has this type and shape.
        """
        mine = self.variable
        same = mine.dtype.base_dtype.name == dtype
        return bool(same and mine.shape.is_compatible_with(list(shape)))

    def assign(self, value: np.ndarray) -> None:
        """Sets the value.

        Args:
            value: an array of the type and of a shape that `fits`.
        """
        self._session().run(self._assign, {self._value: value})


class _RowOps:
    """The ops on the changed rows of one table; a graph that is trained takes no new ones."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.consumer = v1.placeholder(tf.int64, [])
        self.interval = v1.placeholder(tf.int64, [])
        handles = [v.handle for v in variables]
        with tf.control_dependencies(None), v1.colocate_with(handles[0]):
            self.taken = library.loaded.twml_take_changed_rows(
                handles, self.consumer, dtypes=[v.dtype.base_dtype for v in variables]
            )
            self.keep = library.loaded.twml_keep_changed_rows(
                handles[0], self.consumer, self.interval
            )
            self.release = library.loaded.twml_release_changed_rows(handles[0], self.consumer)


class GraphChangedRows:
    """The changed rows of one table for one consumer; see `twml_ops.ops.ChangedRows`.

    Args:
        ops: the ops of the table.
        variables: the table and its slots.
        session: in which they have their values.

    Attributes:
        variables: the table and its slots.
    """

    def __init__(self, ops: _RowOps, variables: Sequence[Any], session: Any) -> None:
        self.variables = tuple(variables)
        self._ops, self._session = ops, session
        self._consumer = {ops.consumer: secrets.randbits(62)}

    def take(self) -> TakenRows:
        """Copies the rows that changed since the last ones that were kept.

        Returns:
            The rows, as arrays.
        """
        taken = self._session.run(self._ops.taken, self._consumer)
        ops = self._ops

        def keep() -> None:
            self._session.run(ops.keep, {**self._consumer, ops.interval: taken.interval})

        return TakenRows(None if taken.all else taken.ids, taken.rows, keep)

    def close(self) -> None:
        """Ends the record of this consumer. A session that is closed has none."""
        with contextlib.suppress(RuntimeError):
            self._session.run(self._ops.release, self._consumer)


def graph_variables(session: GetSession) -> list[GraphVariable]:
    """All global variables of the current graph, which is not finalized.

    Args:
        session: returns the session in which they have their values.

    Returns:
        The variables, sorted by name.

    Raises:
        CheckpointError: values of one of them cannot be saved.
    """
    table_of: dict[str, str] = {}
    for table, slots in v1.get_collection(TABLES):
        for each in (table, *slots):
            if each.shape.rank and each.shape[0] == table.shape[0]:
                table_of[each.op.name] = table.op.name
    by_name = {v.op.name: v for v in v1.global_variables()}
    made = {
        name: GraphVariable(by_name[name], session, table_of.get(name, ""))
        for name in sorted(by_name)
    }
    for name, variable in made.items():
        if variable.table == name:
            others = [v for v in made.values() if v.table == name and v is not variable]
            variable.follow(others)
    return list(made.values())
