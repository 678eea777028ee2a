"""The members of an ensemble that are trained already, kept until the run has finished."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import tensorflow as tf

from twml_ops._publish import new_folder
from twml_ops.cli.errors import UserError
from twml_ops.cli.results.history import History
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.runner import FittedModel

MODEL, HISTORY = "model.keras", "history.json"


class MemberStore:
    """The folder `members` beside the checkpoints of a run.

    A member is a folder with its number, which appears by a rename when all of it is written.

    Args:
        folder: the folder of the members.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def has_members(self) -> bool:
        """Whether a member is kept."""
        return any(self._folder.glob(f"*/{MODEL}"))

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
            fitted.model.save(str(part / MODEL))
            values = {"run": config.to_json(), "history": fitted.history.to_json()}
            (part / HISTORY).write_text(json.dumps(values), encoding="utf-8")

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
            values = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
            history, run = History.from_json(values["history"]), dict(values["run"])
            config.check_same(run, folder)
            return FittedModel(
                tf.keras.models.load_model(str(folder / MODEL), compile=False), history
            )
        except (OSError, ValueError, TypeError, KeyError) as e:
            raise UserError(f"{folder}: is no member of an ensemble: {e}") from e

    def remove(self) -> None:
        """Removes all members."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)
