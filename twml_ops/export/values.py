"""Where an export gets the values of variables: from the variables, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from twml_ops.checkpoint import CheckpointReader
from twml_ops.checkpoint.rows import ROWS
from twml_ops.checkpoint.variables import variables_of


class TableRows(NamedTuple):
    """Rows of a table.

    Attributes:
        rows: int64 [C], their numbers, ascending; None: all rows.
        values: [C, D] or [N, D].
        num_rows: N.
    """

    rows: NDArray[np.int64] | None
    values: NDArray[Any]
    num_rows: int


class Values:
    """The current values of variables."""

    def read(self, variable: tf.Variable) -> NDArray[Any]:
        """The value of a variable."""
        return np.asarray(variable.numpy())

    def changed_rows(self, parts: Sequence[tf.Variable], axis: str) -> TableRows:
        """The rows of a table that an export needs.

        Args:
            parts: the variables that the table is divided into.
            axis: "row": row r is in part r modulo the number of parts; or "column".

        Returns:
            All rows, or those that changed.
        """
        return _joined([(None, self.read(part)) for part in parts], axis)


class CheckpointValues(Values):
    """The values of a model in a checkpoint. Variables that it does not have keep their own.

    Args:
        names: names in the checkpoint, by `id` of the variable; see `names_of`.
        checkpoint: the checkpoint.
        since: names of checkpoints, of which the newest has been exported: of tables, the rows
            that changed since are enough. Empty: all rows.
    """

    def __init__(
        self, names: dict[int, str], checkpoint: CheckpointReader, since: Collection[str]
    ) -> None:
        self._names, self._checkpoint, self._since = names, checkpoint, since

    def read(self, variable: tf.Variable) -> NDArray[Any]:
        """The value of a variable in the checkpoint."""
        name = self._name(variable)
        return super().read(variable) if name is None else self._checkpoint.read(name)

    def changed_rows(self, parts: Sequence[tf.Variable], axis: str) -> TableRows:
        """The rows of a table that changed; see `Values.changed_rows`."""
        found = [self._changed_rows(part) for part in parts]
        ids = [rows for rows, _ in found if rows is not None]
        same = axis == "row" or all(np.array_equal(ids[0], i) for i in ids)
        if len(ids) < len(parts) or not same:
            found = [(None, self.read(part)) for part in parts]
        return _joined(found, axis, sum(map(self._num_rows, parts)))

    def _changed_rows(self, part: tf.Variable) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
        name = self._name(part)
        if name is None or self._checkpoint.entries[name].encoding != ROWS or not self._since:
            return None, np.zeros(0)
        return self._checkpoint.changed_rows(name, self._since)

    def _num_rows(self, part: tf.Variable) -> int:
        name = self._name(part)
        return int(part.shape[0]) if name is None else self._checkpoint.entries[name].shape[0]

    def _name(self, variable: tf.Variable) -> str | None:
        name = self._names.get(id(variable))
        return name if name in self._checkpoint.entries else None


def names_of(model: tf.keras.Model) -> dict[int, str]:
    """The names of the variables of a model in checkpoints, by `id` of the variable."""
    return {id(copy): v.name for v in variables_of(model) for copy in v.copies}


def _joined(
    parts: Sequence[tuple[NDArray[np.int64] | None, NDArray[Any]]], axis: str, num_rows: int = 0
) -> TableRows:
    rows, values = parts[0]
    if len(parts) == 1:
        return TableRows(rows, values, num_rows or len(values))
    if axis == "column":
        joined = np.concatenate([part for _, part in parts], axis=1)
        return TableRows(rows, joined, num_rows // len(parts) or len(joined))
    if rows is None:
        whole = np.empty((sum(len(part) for _, part in parts), *values.shape[1:]), values.dtype)
        for p, (_, part) in enumerate(parts):
            whole[p :: len(parts)] = part
        return TableRows(None, whole, len(whole))
    numbers = np.concatenate([r * len(parts) + p for p, (r, _) in enumerate(parts)])  # type: ignore[operator]
    order = np.argsort(numbers, kind="stable")
    joined = np.concatenate([part for _, part in parts])[order]
    return TableRows(numbers[order], joined, num_rows)
