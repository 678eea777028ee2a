"""The changed rows of all tables of a training, as checkpoints need them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from twml_ops.checkpoint.baseline_policy import Policy, baseline_pays, check_policy
from twml_ops.checkpoint.rows import check_bits
from twml_ops.ops import TakenRows


class RowsOfTable(Protocol):
    """The changed rows of a table for one consumer, such as `twml_ops.ops.ChangedRows`."""

    @property
    def variables(self) -> tuple[Any, ...]:
        """The table and its slots."""

    def take(self) -> TakenRows:
        """Copies the rows that changed since the last ones that were kept."""

    def close(self) -> None:
        """Ends the record of the consumer."""


class TableVariable(Protocol):
    """A table or a slot of one, such as `NamedVariable`."""

    @property
    def name(self) -> str:
        """The same in every process that builds the same model."""

    @property
    def label(self) -> str:
        """Name for people."""

    @property
    def variable(self) -> Any:
        """The variable of TensorFlow."""

    @property
    def table(self) -> str:
        """Name of the table."""

    def changed_rows(self, group: Sequence[Any]) -> RowsOfTable:
        """The changed rows of this table, with its slots, for a new consumer."""


class TablePolicy:
    """Which rows of tables and slots checkpoints contain, and with how many bits.

    Args:
        policy: see `Policy`. Only the tables of this package's optimizers, with their slots, are
            written by changed rows; all other variables are always written as they are.
        bits: bits of a weight by name of the variable: patterns of `fnmatch` for labels, such as
            {"*/kernel": 4, "optimizer/*": 8}, the first of which counts. None: as it is. Variables
            that no pattern matches, and those that are not a table or its slots, stay as they are.

    Raises:
        ValueError: there is no such policy, or a number of bits is not possible.
    """

    def __init__(
        self, policy: Policy = "full", bits: Mapping[str, int | None] | None = None
    ) -> None:
        check_policy(policy)
        self.policy, self.bits = policy, dict(bits or {})
        for pattern, each in self.bits.items():
            check_bits(each, f"bits[{pattern!r}]")

    def bits_of(self, label: str) -> int | None:
        """The bits of a variable.

        Args:
            label: the label of the variable.

        Returns:
            The number of bits; None: as it is.
        """
        for pattern, bits in self.bits.items():
            if fnmatch.fnmatchcase(label, pattern):
                return bits
        return None


class TableFollower:
    """Decides for each checkpoint which rows it has, and takes them.

    Args:
        policy: the policy of the checkpoints.
    """

    def __init__(self, policy: TablePolicy) -> None:
        self.policy = policy
        self._changed: dict[str, RowsOfTable] = {}
        self._base: str | None = None
        self._baseline_bytes = 0
        self._changed_bytes: list[int] = []

    def take(self, variables: Sequence[Any], is_valid: Callable[[str], bool]) -> Taken:
        """Copies the rows that the next checkpoint needs.

        Args:
            variables: all that are saved.
            is_valid: whether the checkpoint with a name still exists.

        Returns:
            The rows.
        """
        tables = tables_of(variables)
        base = self._base
        if (
            not self._follows(tables)
            or base is None
            or not is_valid(base)
            or self._baseline_is_due()
        ):
            base = None
        # Another consumer starts with all rows, and the current one stays as it is until the
        # baseline is written.
        changed = (
            self._changed
            if base is not None
            else {name: group[0].changed_rows(group) for name, group in tables.items()}
        )
        rows: dict[str, tuple[np.ndarray | None, np.ndarray]] = {}
        taken = {name: each.take() for name, each in changed.items()}
        for name, group in tables.items():
            for variable, each in zip(group, taken[name].rows, strict=True):
                rows[variable.name] = taken[name].ids, np.asarray(each)
        return Taken(self, base, rows, changed, list(taken.values()))

    def _follows(self, tables: Mapping[str, Sequence[TableVariable]]) -> bool:
        """Whether these variables are followed; another model has other ones of the same names."""
        return set(tables) == set(self._changed) and all(
            [id(v.variable) for v in group] == [id(v) for v in self._changed[name].variables]
            for name, group in tables.items()
        )

    def close(self) -> None:
        """Ends the records of changed rows."""
        _close(self._changed)
        self._changed, self._base = {}, None

    def _baseline_is_due(self) -> bool:
        return self.policy.policy == "full" or (
            self.policy.policy == "intermittent"
            and baseline_pays(self._baseline_bytes, self._changed_bytes)
        )

    def _written(self, taken: Taken, name: str, size: int) -> None:
        if taken.base is None:
            _close(self._changed)
            self._changed, self._base = taken.changed, name
            self._baseline_bytes, self._changed_bytes = size, []
        else:
            self._changed_bytes.append(size)
        if taken.base is None or self.policy.policy == "consecutive":
            self._base = name
            for each in taken.parts:
                each.keep()


class Taken:
    """The rows of one checkpoint.

    Attributes:
        base: name of the checkpoint that these are the changes to; None: all rows.
        rows: numbers (None: all) and values of the rows, by name of the variable.
    """

    def __init__(
        self,
        follower: TableFollower,
        base: str | None,
        rows: dict[str, tuple[np.ndarray | None, np.ndarray]],
        changed: dict[str, RowsOfTable],
        parts: list[TakenRows],
    ) -> None:
        self.base, self.rows = base, rows
        self.changed, self.parts = changed, parts
        self._follower = follower

    def written(self, name: str, size: int) -> None:
        """Confirms that the checkpoint is on the disk. Without it the rows come again.

        Args:
            name: the name of the checkpoint.
            size: bytes of the rows as they were written.
        """
        self._follower._written(self, name, size)

    def failed(self) -> None:
        """Gives the rows back."""
        if self.base is None:
            _close(self.changed)


def tables_of(variables: Sequence[Any]) -> dict[str, list[TableVariable]]:
    """The tables among variables, each with its slots.

    Args:
        variables: the variables of a training.

    Returns:
        The table and its slots by name of the table.
    """
    by_name = {v.name: v for v in variables if getattr(v, "table", "")}
    groups: dict[str, list[TableVariable]] = {}
    for variable in by_name.values():
        if variable.table in by_name:
            groups.setdefault(variable.table, [by_name[variable.table]])
            if variable.name != variable.table:
                groups[variable.table].append(variable)
    return groups


def _close(changed: Mapping[str, RowsOfTable]) -> None:
    for each in changed.values():
        each.close()
