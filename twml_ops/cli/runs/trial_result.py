"""What a trial of a search has found."""

from __future__ import annotations

from typing import NamedTuple

from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.trial import Trial
from twml_ops.cli.runs.config import RunConfig


class TrialResult(NamedTuple):
    """A trial, its configuration, and the chosen number of epochs if it is finished."""

    trial: Trial
    config: RunConfig
    choice: EpochChoice | None
