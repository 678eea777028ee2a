"""How the model of a run and its options were chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

from twml_ops.cli.results.trial import Trial


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The trials of `--model auto`, or of the default model and the one that it is compared with.

    Attributes:
        trials: in the order in which they were done.
        seconds: duration of the search.
        time_limit: seconds after which no further trial was to start; None: there is no limit.
    """

    trials: tuple[Trial, ...]
    seconds: float
    time_limit: float | None

    @property
    def best(self) -> int:
        """The position of the trial with the lowest loss."""
        losses = [trial.log_loss for trial in self.trials]
        return losses.index(min(losses))

    def facts(self) -> dict[str, Any]:
        """The choice as an entry of run.json."""
        return {
            "best": self.best,
            "seconds": self.seconds,
            "time_limit": self.time_limit,
            "trials": [trial.facts() for trial in self.trials],
        }
