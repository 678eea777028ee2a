"""Puts the values of a checkpoint into the variables of a model.

`CheckpointManager` (`manager.py`) decides which checkpoint that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.checkpoint.manifest import VariableEntry
from twml_ops.checkpoint.reader import CheckpointReader

STATES = "states/"
_SHOWN = 3


class Restorable(Protocol):
    """A variable that a checkpoint restores, such as `NamedVariable`."""

    @property
    def name(self) -> str:
        """The same in every process that builds the same model."""

    @property
    def label(self) -> str:
        """Name for people."""

    @property
    def variable(self) -> Any:
        """The variable of TensorFlow."""

    def fits(self, dtype: str, shape: Sequence[int]) -> bool:
        """Whether it can have a value of this type and shape."""

    def assign(self, value: np.ndarray) -> None:
        """Sets the value."""


class Restoration:
    """Restores variables in one or several parts, because Keras creates some in the first step.

    Args:
        checkpoint: where to read; all of it is compared with its checksums.
        verified: whether that was done already.

    Raises:
        CheckpointError: a file is damaged.
    """

    def __init__(self, checkpoint: CheckpointReader, verified: bool = False) -> None:
        if not verified:
            checkpoint.verify()
        self._checkpoint = checkpoint
        entries = checkpoint.entries.items()
        self._entries = {name: e for name, e in entries if not name.startswith(STATES)}
        self._left = dict(self._entries)

    def restore_first(self, variables: Sequence[Restorable]) -> None:
        """Restores the weights of the model and the variables of the optimizer that exist already.

        Args:
            variables: the result of `variables_of`, as far as the variables exist.

        Raises:
            CheckpointError: one of them has another type or shape in the checkpoint. No variable
                has changed.
        """
        early = [v for v in variables if v.name in self._left and not v.name.startswith("metrics/")]
        self._check(early, {v.name: self._entries[v.name] for v in early})
        self._assign(early)

    def restore_all(self, variables: Sequence[Restorable]) -> None:
        """Restores all variables that have not been restored yet.

        Args:
            variables: the result of `variables_of`, when all variables exist.

        Raises:
            CheckpointError: the checkpoint is of another model or optimizer. No variable has
                changed.
        """
        self._check(variables, self._entries)
        self._assign([v for v in variables if v.name in self._left])

    def _assign(self, variables: Sequence[Restorable]) -> None:
        for variable in variables:
            assign_pieces = getattr(variable, "assign_pieces", None)
            if assign_pieces is None or getattr(variable, "pieces", None) is None:
                variable.assign(self._checkpoint.read(variable.name))
            else:  # it may be larger than memory
                assign_pieces(self._checkpoint.read_pieces(variable.name))
            del self._left[variable.name]

    def _check(self, variables: Sequence[Restorable], entries: Mapping[str, VariableEntry]) -> None:
        """Checks that entries have the names, types and shapes of variables, and no others."""
        entries, wrong = dict(entries), []
        for variable in variables:
            entry = entries.pop(variable.name, None)
            shape = getattr(variable, "shape", variable.variable.shape)
            mine = f"{variable.variable.dtype.name} {list(shape)}"
            if entry is None:
                wrong.append(f"{variable.label} ({mine}) is not in it")
            elif not variable.fits(entry.dtype, entry.shape):
                wrong.append(f"{variable.label} is {mine}, in it {entry.dtype} {list(entry.shape)}")
        wrong += [f"{entry.label} is only in it" for entry in entries.values()]
        if wrong:
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise CheckpointError(
                f"{self._checkpoint.folder}: is a checkpoint of another model or optimizer: "
                f"{'; '.join(wrong[:_SHOWN])}{more}"
            )


def restore(
    checkpoint: CheckpointReader, variables: Sequence[Restorable], verified: bool = False
) -> None:
    """Restores all variables. Everything is checked before the first one changes.

    Args:
        checkpoint: where to read.
        variables: the result of `variables_of` for the model that was saved.
        verified: whether the checkpoint was compared with its checksums already.

    Raises:
        CheckpointError: a file is damaged, or the checkpoint is of another model or optimizer.
            No variable has changed.
    """
    Restoration(checkpoint, verified).restore_all(variables)
