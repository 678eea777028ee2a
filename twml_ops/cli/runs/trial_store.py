"""The trials of `--model auto` that are done already, kept until the run has finished."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from twml_ops._publish import write_file
from twml_ops.cli.errors import UserError
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.trial import Trial
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.trial_result import TrialResult

TRIALS = "trials.json"


class KeptTrials(NamedTuple):
    """The trials of a search that is not finished.

    Attributes:
        results: the results of the trials that are done, in their order.
        seconds: that the search has taken.
    """

    results: Sequence[TrialResult]
    seconds: float


class TrialStore:
    """The file `trials.json` beside the checkpoints of a run.

    Args:
        folder: the folder of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TRIALS

    @property
    def has_trials(self) -> bool:
        """Whether a trial is kept."""
        return self._path.exists()

    def save(self, config: RunConfig, kept: KeptTrials) -> None:
        """Replaces the file, at once.

        Args:
            config: configuration of the run.
            kept: all trials so far.

        Raises:
            OSError: the file cannot be written.
        """
        trials = [
            {
                "trial": result.trial.facts(),
                "config": result.config.to_json(),
                "choice": result.choice and result.choice.to_json(),
            }
            for result in kept.results
        ]
        values = {"run": config.to_json(), "seconds": kept.seconds, "trials": trials}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self._path, json.dumps(values).encode())

    def load(self, config: RunConfig) -> KeptTrials | None:
        """The trials that are kept.

        Args:
            config: configuration of the run.

        Returns:
            The trials; None if there are none.

        Raises:
            UserError: the file is damaged, or of a run with another configuration.
        """
        if not self.has_trials:
            return None
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            results = [
                TrialResult(
                    Trial.from_facts(each["trial"]),
                    RunConfig.from_json(each["config"]),
                    EpochChoice.from_json(each["choice"]) if each["choice"] else None,
                )
                for each in values["trials"]
            ]
            kept = KeptTrials(results, float(values["seconds"]))
            run = dict(values["run"])
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise UserError(f"{self._path}: is no record of trials: {e}") from e
        config.check_same(run, self._path)
        return kept

    def remove(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
