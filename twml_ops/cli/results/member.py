"""A member of an ensemble."""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    """The training of one member of an ensemble.

    Attributes:
        seed: seed of its initial weights, of dropout and of the order of the examples.
        examples: number of examples trained on, counted once for each epoch.
        seconds: training time, evaluation excluded.
    """

    seed: int
    examples: int
    seconds: float
