"""The trials and the members of an ensemble that are done, kept until the run has finished."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import tensorflow as tf

from twml_ops._publish import new_folder, write_file
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.results import EpochChoice, FittedModel, History, Trial, TrialResult

TRIALS = "trials.json"
MEMBERS = "members"  # the folder of a `MemberStore` beside the checkpoints of a run


class KeptTrials(NamedTuple):
    """The trials of a search that is not finished.

    Attributes:
        results: the results of the trials that are done, in their order.
        seconds: that the search has taken.
    """

    results: Sequence[TrialResult]
    seconds: float


class KeepsTrials(Protocol):
    """What keeps the trials of a search, for a process that goes on with it."""

    def load_trials(self) -> KeptTrials | None:
        """The trials that an earlier process has done; None if there are none."""

    def keep_trials(self, kept: KeptTrials) -> None:
        """Keeps all trials so far."""


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
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as e:
            raise UserError(f"{self._path}: is not a record of trials: {e}") from e
        config.check_same(run, self._path)
        return kept

    def remove(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


_MEMBER_MODEL, _MEMBER_HISTORY = "model.keras", "history.json"


class MemberStore:
    """The folder `MEMBERS` beside the checkpoints of a run.

    A member is a folder with its number, which appears by a rename when all of it is written.

    Args:
        folder: the folder of the members.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, number: int) -> bool:
        """Whether a member is kept.

        Args:
            number: the number of the member.
        """
        return (self._folder / str(number)).is_dir()

    @property
    def has_members(self) -> bool:
        """Whether a member is kept."""
        return any(self._folder.glob(f"*/{_MEMBER_MODEL}"))

    def save(self, number: int, fitted: FittedModel, config: RunConfig) -> None:
        """Keeps a member.

        Args:
            number: the number of the member, from 0.
            fitted: the member, as it was trained.
            config: configuration of the run.

        Raises:
            OSError: the files cannot be written.
        """
        with new_folder(self._folder / str(number)) as part:
            fitted.model.save(str(part / _MEMBER_MODEL))
            values = {"run": config.to_json(), "history": fitted.history.to_json()}
            (part / _MEMBER_HISTORY).write_text(json.dumps(values), encoding="utf-8")

    def load(self, number: int, config: RunConfig) -> FittedModel | None:
        """A member that is kept.

        Args:
            number: the number of the member, from 0.
            config: configuration of the run.

        Returns:
            The member; None if it was not trained to its end.

        Raises:
            UserError: its files are damaged, or of a run with another configuration.
        """
        folder = self._folder / str(number)
        if not folder.is_dir():
            return None
        try:
            values = json.loads((folder / _MEMBER_HISTORY).read_text(encoding="utf-8"))
            history, run = History.from_json(values["history"]), dict(values["run"])
            config.check_same(run, folder)
            return FittedModel(
                tf.keras.models.load_model(str(folder / _MEMBER_MODEL), compile=False), history
            )
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as e:
            raise UserError(f"{folder}: is not a member of an ensemble: {e}") from e

    def remove(self) -> None:
        """Removes all members."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)
