"""The record of one trial of a search for a model and its options."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

Outcome = Literal["finished", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A model that was trained on one part of the training data and judged on the other one.

    Attributes:
        model: name of the model.
        model_options: options of the model; the others had their defaults.
        learning_rate: learning rate.
        losses: log loss on the validation data after each epoch.
        seconds: duration of the trial.
        outcome: "finished" by early stopping; "stopped" earlier, because it was worse than others
            or the time was over; or "failed".
        note: why it stopped or failed.
    """

    model: str
    model_options: dict[str, Any]
    learning_rate: float
    losses: tuple[float, ...]
    seconds: float
    outcome: Outcome
    note: str = ""

    @property
    def log_loss(self) -> float:
        """The lowest loss; infinite if the trial is not finished, so that it is never the best."""
        return min(self.losses) if self.outcome == "finished" else math.inf

    @property
    def epochs(self) -> int:
        """The number of epochs with the lowest loss; 0 if there was none."""
        return self.losses.index(min(self.losses)) + 1 if self.losses else 0

    def facts(self) -> dict[str, Any]:
        """The trial as an entry of run.json."""
        return {**dataclasses.asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Trial:
        """The trial of an entry of run.json, in which null is an infinite loss."""
        losses = tuple(math.inf if loss is None else loss for loss in facts["losses"])
        return cls(**{**facts, "losses": losses})
