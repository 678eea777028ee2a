"""The towers of a model on fields: which fields each has, and their modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twml_ops._research import research

_OUTPUTS = 0.25


def tower_fields(towers: Sequence[str], names: Sequence[str]) -> list[list[int]]:
    """Returns the positions of the fields of each tower.

    Args:
        towers: The names of the fields of each tower, with `+` between them.
        names: The names of all fields.

    Raises:
        ValueError: A field is in no tower, or a name is unknown or is there twice.
    """
    named = [tower.split("+") for tower in towers]
    every = [name for tower in named for name in tower]
    unknown = [name for name in every if name not in names]
    if unknown:
        raise ValueError(
            f"field_towers must name fields, got {unknown[0]!r}; the fields are {', '.join(names)}"
        )
    for name in names:
        if every.count(name) != 1:
            raise ValueError(
                f"field_towers must have each field once, got {name!r} {every.count(name)} times"
            )
    return [[names.index(name) for name in tower] for tower in named]


def tower_modules(
    vectors: Any, names: Sequence[str], towers: Sequence[str], outputs: float | None
) -> list[Any]:
    """Applies a `research.TowerModule` for each tower.

    Args:
        vectors: [B, F, D].
        names: The names of the F fields.
        towers: See `tower_fields`.
        outputs: The ratio of each module; None: 1/4.

    Returns:
        The output [B, any] of each.
    """
    ratio = _OUTPUTS if outputs is None else outputs
    return [
        research().TowerModule(ratio, fields, name=f"tower_module_{i}")(vectors)
        for i, fields in enumerate(tower_fields(towers, names))
    ]
