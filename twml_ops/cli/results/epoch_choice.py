"""How the number of passes over the training data was chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from twml_ops.cli.results.history import History


@dataclasses.dataclass(frozen=True)
class EpochChoice:
    """The number of epochs after which the loss on the validation data was lowest.

    Attributes:
        fit_source: name of the training data without the validation data.
        validation_source: name of the validation data.
        fit_examples: number of examples of the former.
        validation_examples: number of examples of the latter.
        epochs: the chosen number of epochs.
        log_loss: the loss on the validation data after them.
        refit: whether the model of the run was trained on all training data afterwards.
        history: the record of the training that was stopped.
    """

    fit_source: str
    validation_source: str
    fit_examples: int
    validation_examples: int
    epochs: int
    log_loss: float
    refit: bool
    history: History

    def facts(self) -> dict[str, Any]:
        """The choice as an entry of run.json."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "history"]
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, Any]:
        """All attributes as values that JSON can hold."""
        return {**self.facts(), "history": self.history.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EpochChoice:
        """What `to_json` returned."""
        return cls(**{**values, "history": History.from_json(values["history"])})
