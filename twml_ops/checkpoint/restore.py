"""Puts the values of a checkpoint into the variables of a model."""

from __future__ import annotations

from collections.abc import Sequence

from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.checkpoint.reader import CheckpointReader
from twml_ops.checkpoint.variables import NamedVariable

_SHOWN = 3


def restore(checkpoint: CheckpointReader, variables: Sequence[NamedVariable]) -> None:
    """Restores all variables. Everything is checked before the first one changes.

    Args:
        checkpoint: where to read.
        variables: those of `variables_of`, of the model that was saved.

    Raises:
        CheckpointError: a file is damaged, or the checkpoint is of another model or optimizer.
            No variable has changed.
    """
    check(checkpoint, variables)
    checkpoint.verify()
    for variable in variables:
        variable.assign(checkpoint.read(variable.name))


def check(checkpoint: CheckpointReader, variables: Sequence[NamedVariable]) -> None:
    """Checks that a checkpoint has the names, types and shapes of variables, and no others.

    Args:
        checkpoint: what was saved.
        variables: those of `variables_of`.

    Raises:
        CheckpointError: it is of another model or optimizer; names the first differences.
    """
    entries, wrong = dict(checkpoint.entries), []
    for variable in variables:
        entry = entries.pop(variable.name, None)
        mine = f"{variable.variable.dtype.name} {list(variable.variable.shape)}"
        if entry is None:
            wrong.append(f"{variable.label} ({mine}) is not in it")
        elif not variable.fits(entry.dtype, entry.shape):
            wrong.append(f"{variable.label} is {mine}, in it {entry.dtype} {list(entry.shape)}")
    wrong += [f"{entry.label} is only in it" for entry in entries.values()]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise CheckpointError(
            f"{checkpoint.folder}: is a checkpoint of another model or optimizer: "
            f"{'; '.join(wrong[:_SHOWN])}{more}"
        )
