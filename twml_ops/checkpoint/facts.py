"""Facts about a training, in a checkpoint. A training that continues it must have the same ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from twml_ops.checkpoint.errors import CheckpointError
from twml_ops.checkpoint.reader import CheckpointReader

FACTS = "values"  # their key in the values of a manifest


def check_facts(
    checkpoint: CheckpointReader,
    expected: Mapping[str, Any],
    kind: str = FACTS,
    may_differ: Collection[str] = (),
) -> None:
    """Refuses the checkpoint of another training.

    Args:
        checkpoint: from which a training is to be continued.
        expected: the facts about that training, as JSON has them.
        kind: key of the facts in the values of the manifest.
        may_differ: names of facts in which they may differ.

    Raises:
        CheckpointError: the checkpoint has none, or one of them differs. The message names it.
    """
    found = checkpoint.manifest.values.get(kind)
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"{checkpoint.folder}: does not say of which training it is: it has no {kind!r}"
        )
    problem = difference_of_facts(found, expected, may_differ)
    if problem is not None:
        raise CheckpointError(f"{checkpoint.folder}: {problem}")


def difference_of_facts(
    found: Mapping[str, Any], expected: Mapping[str, Any], may_differ: Collection[str] = ()
) -> str | None:
    """Compares the facts of two trainings.

    Args:
        found: the facts about a training that has left something.
        expected: the facts about the training that wants to continue it.
        may_differ: names of facts in which they may differ.

    Returns:
        A text that names the first difference; None if there is none.
    """
    for name in sorted({*expected, *found} - {*may_differ}):
        if expected.get(name) != found.get(name):
            return (
                f"was written by a training with {name} = {found.get(name)!r}, "
                f"got {expected.get(name)!r}"
            )
    return None
