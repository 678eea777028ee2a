"""Opens a finished run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops import _keras, layers, models, optimizers
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.folder import MODEL_FILE, read_run
from twml_ops.cli.runs.model_options import builder_of, path_of
from twml_ops.cli.runs.sources import Holdout, open_pair
from twml_ops.data import Schema, Source, open_source

CUSTOM = (
    layers,
    models,
    optimizers,
)  # importing them registers the classes that a .keras file names


class TrainedRun:
    """A finished run.

    Args:
        folder: folder of the run.

    Attributes:
        facts: content of run.json.
        schema: the features of the model.

    Raises:
        UserError: the folder is not a finished run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts: dict[str, Any] = read_run(folder)
        self.schema = Schema.from_dict(self.facts["schema"])

    @cached_property
    def model(self) -> tf.keras.Model:
        """The trained model.

        Raises:
            UserError: the file cannot be read.
        """
        path = self._folder / MODEL_FILE
        file = path_of(self.facts["model"])
        if file is not None and file.exists():
            builder_of(self.facts["model"])  # registers the classes of a model of the user
        try:
            return tf.keras.models.load_model(str(path), compile=False)
        except (OSError, ValueError, TypeError) as e:
            made = self.facts["versions"]["keras"]
            raise UserError(
                f"{path}: cannot be read by Keras {_keras.VERSION} (written by {made}): {e}"
            ) from e

    @property
    def calibration(self) -> dict[str, Any] | None:
        """The entry of run.json about the calibration; None if the run is not calibrated."""
        found: dict[str, Any] | None = self.facts.get("calibration")
        return found

    @property
    def holdout(self) -> Holdout:
        """How the evaluation data were held out of the training data."""
        held_out: Holdout = self.facts.get("holdout") or "order"
        return held_out

    def source(self, data: str | None) -> Source:
        """Opens a SOURCE with the features of the run.

        Args:
            data: the SOURCE; None: the evaluation data of the run.

        Raises:
            FileNotFoundError: a file does not exist.
            DataError: data cannot be read, or have other features.
        """
        if data is not None:
            return open_source(data, like=self.schema)
        if self.calibration is not None:
            return self.calibration_pair(self.calibration["data"], self.calibration["eval"])[1]
        return self._held_out()

    def unlabeled_source(self, data: str) -> Source:
        """Opens a SOURCE of which only the features are used.

        CSV, Parquet and TFRecord files need no labels, weights, times or groups.

        Args:
            data: the SOURCE.

        Raises:
            FileNotFoundError: a file does not exist.
            DataError: data cannot be read, or have other features.
        """
        return open_source(data, like=self.schema.without_labels())

    def calibration_pair(self, data: str | None, evaluation: str | None) -> tuple[Source, Source]:
        """Opens the data of a calibration.

        Args:
            data: SOURCE to fit on; None: the evaluation data of the training.
            evaluation: SOURCE to evaluate on; None: a part of `data` is held out for it.

        Returns:
            (data to fit on, data to evaluate on).

        Raises:
            FileNotFoundError: a file does not exist.
            DataError: data cannot be read, or have other features.
            ValueError: a part would be empty.
        """
        given = self._held_out() if data is None else open_source(data, like=self.schema)
        if evaluation is not None:
            return given, open_source(evaluation, like=self.schema)
        return given.split()

    def _held_out(self) -> Source:
        return open_pair(
            self.facts["data"], self.facts["eval"], like=self.schema, holdout=self.holdout
        )[1]
