"""What a peer does: it is tuned once for a data set, then trained once for each seed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.quality.cpu_time import cpu_seconds
from benchmarks.quality.examples import Examples

Settings = Mapping[str, Any]
PATIENCE = 30  # rounds without a lower validation loss


class Trained(NamedTuple):
    """The result of one training.

    Attributes:
        predictions: probabilities of the examples of `Peer.run`'s argument `scored`.
        rounds: number of trees or epochs of the best validation loss; None without early stopping.
    """

    predictions: npt.NDArray[np.float64]
    rounds: int | None = None


class Tuned(NamedTuple):
    """The result of tuning.

    Attributes:
        settings: the settings with the lowest validation log loss, with their number of `rounds` if
            the peer stops early.
        tried: all settings, each with its `validation_log_loss`.
        cpu_seconds: CPU time of the search.
    """

    settings: dict[str, Any]
    tried: list[dict[str, Any]]
    cpu_seconds: float


class Peer(ABC):
    """A model of another library.

    Args:
        threads: number of threads that it may use.

    Attributes:
        name: as in the tables.
        seeded: whether its result depends on the seed.
        grid: the settings that are compared.
    """

    name: str
    seeded = True
    grid: tuple[Settings, ...]

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    @abstractmethod
    def run(
        self,
        settings: Settings,
        train: Examples,
        scored: Examples,
        *,
        seed: int,
        stop_early: bool,
    ) -> Trained:
        """Trains a model and predicts.

        Args:
            settings: an element of `grid`; without `stop_early` also the number of `rounds`, of
                peers that have rounds.
            train: examples to train on.
            scored: examples to predict; with `stop_early` their labels decide when to stop.
            seed: the seed of the training.
            stop_early: whether `scored` is a validation set and decides the number of rounds.
        """

    def tune(self, train: Examples, validation: Examples) -> Tuned:
        """Selects the settings with the lowest log loss on a validation part of the training data.

        Args:
            train: the training data without the validation part.
            validation: the validation part.
        """
        start = cpu_seconds()
        best: tuple[float, dict[str, Any]] = math.inf, {}
        tried = []
        for settings in self.grid:
            found = self.run(settings, train, validation, seed=0, stop_early=True)
            loss = log_loss(validation.labels, found.predictions)
            chosen = dict(settings)
            if found.rounds is not None:
                chosen["rounds"] = found.rounds
            tried.append({**chosen, "validation_log_loss": loss})
            if loss < best[0]:
                best = loss, chosen
        return Tuned(best[1], tried, cpu_seconds() - start)


def log_loss(labels: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> float:
    """Mean negative log likelihood of labels 0 and 1, with probabilities clipped to 1e-7."""
    p = np.clip(np.asarray(predictions, np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(labels > 0.5, np.log(p), np.log1p(-p))))
