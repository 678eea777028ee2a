"""The results of training runs that differ in nothing but timing."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class RepeatedRuns:
    """The results of repeated runs.

    Attributes:
        name: "synchronous" or "hogwild".
        losses: log loss of each run on the evaluation data.
        examples_per_second: throughput of all runs together.
    """

    name: str
    losses: list[float]
    examples_per_second: float

    @property
    def mean(self) -> float:
        """Mean of the losses."""
        return float(np.mean(self.losses))

    @property
    def spread(self) -> float:
        """Largest loss minus smallest loss."""
        return max(self.losses) - min(self.losses)
