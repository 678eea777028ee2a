"""Finished runs: their model, their data, and trainings that go on from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

import numpy as np
import tensorflow as tf

from twml_ops import _keras, layers, models, optimizers
from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    NamedVariable,
    restore,
    variables_of,
)
from twml_ops.data import Schema, Source, open_source
from twml_ops.data.errors import one_line, shown
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.model_options import builder_of, path_of
from twml_ops.training.run_folder import (
    MODEL_FILE,
    RUN_FILE,
    SLOTS,
    damage_is_reported,
    read_run,
)
from twml_ops.training.sources import LARGE_BATCH_SIZE, Holdout, open_pair

CUSTOM = (
    layers,
    models,
    optimizers,
)  # importing them registers the classes that a .keras file names


_LONGEST = 1000  # characters of an error of Keras, which can have the whole model


class TrainedRun:
    """A finished run.

    Args:
        folder: folder of the run.

    Attributes:
        facts: content of run.json.
        schema: the features of the model.

    Raises:
        UserError: the folder is not a finished run, or its run.json is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts: dict[str, Any] = read_run(folder)
        with damage_is_reported(folder / RUN_FILE):
            self.schema = Schema.from_dict(self.facts["schema"])
            self._model = str(self.facts["model"])
            self._keras = self.facts["versions"]["keras"]

    @cached_property
    def model(self) -> tf.keras.Model:
        """The trained model.

        Raises:
            UserError: the file cannot be read.
        """
        path = self._folder / MODEL_FILE
        file = path_of(self._model)
        if file is not None and file.exists():
            builder_of(self._model)  # registers the classes of a model of the user
        try:
            return tf.keras.models.load_model(str(path), compile=False)
        except Exception as e:  # Keras, h5py and zipfile have many
            raise UserError(
                f"{path}: cannot be read by Keras {_keras.VERSION} (written by {self._keras}): "
                f"{one_line(e)[:_LONGEST]}"
            ) from e

    def fact(self, name: str, kind: type | UnionType) -> Any:
        """An entry of run.json.

        Args:
            name: its name.
            kind: its type, such as `str | None`.

        Raises:
            UserError: there is none, or it has another type.
        """
        with damage_is_reported(self._folder / RUN_FILE):
            found = self.facts[name]
            if not isinstance(found, kind):
                expected = kind.__name__ if isinstance(kind, type) else str(kind)
                raise ValueError(f"expected {name} of type {expected}, got {shown(found)}")
        return found

    @property
    def calibration(self) -> dict[str, Any] | None:
        """The entry of run.json about the calibration; None if the run is not calibrated."""
        found: dict[str, Any] | None = None
        if "calibration" in self.facts:
            found = self.fact("calibration", dict | NoneType)
        if found is not None:
            with damage_is_reported(self._folder / RUN_FILE):
                texts = {name: found[name] for name in ("run", "data", "eval")}
                if not all(isinstance(text, str | NoneType) for text in texts.values()):
                    raise ValueError(f"expected names of data in calibration, got {shown(texts)}")
        return found

    @property
    def holdout(self) -> Holdout:
        """How the evaluation data were held out of the training data."""
        held_out: Holdout = self.facts.get("holdout") or "order"
        with damage_is_reported(self._folder / RUN_FILE):
            if held_out not in get_args(Holdout):
                expected = " or ".join(get_args(Holdout))
                raise ValueError(f"expected holdout to be {expected}, got {shown(held_out)}")
        return held_out

    def source(self, data: str | None) -> Source:
        """Opens a SOURCE with the features of the run.

        Args:
            data: the SOURCE; None: the evaluation data of the run.

        Raises:
            UserError: the evaluation data of the run were objects in memory.
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
            UserError: the evaluation data of the run are needed, and were objects in memory.
            FileNotFoundError: a file does not exist.
            DataError: data cannot be read, or have other features.
            ValueError: a part would be empty.
        """
        given = self._held_out() if data is None else open_source(data, like=self.schema)
        if evaluation is not None:
            return given, open_source(evaluation, like=self.schema)
        return given.split()

    def _held_out(self) -> Source:
        if self.facts.get("from_objects"):
            labels = ", ".join(self.schema.labels)
            raise UserError(
                f"{self._folder}: the model was trained on {self.facts['data']} in memory, so the "
                "evaluation data of the run cannot be opened again; expected --data with examples "
                f"in a file, such as --data csv:FILE or parquet:FILE with the label {labels}"
            )
        data, evaluation = self.fact("data", str), self.fact("eval", str | NoneType)
        return open_pair(data, evaluation, like=self.schema, holdout=self.holdout)[1]


class WarmStart:
    """The model of a finished run as the start of another one.

    Ids, buckets and rows of categories are taken from the earlier run, and so are their weights.
    Categories that are frequent in the new data and have no row get one (`with_new_categories`).
    Statistics that layers collect in training, such as the maxima of `MaxNorm`, go on. The
    optimizer has the slots of the earlier run if that has saved them (`restore_slots`), and starts
    anew if not.

    Args:
        config: configuration of the new run, with `from_run`.

    Raises:
        UserError: `from_run` is no finished run, or one whose model corrects its predictions.
    """

    def __init__(self, config: RunConfig) -> None:
        assert config.from_run is not None
        self._folder, self._seed = Path(config.from_run), config.seed
        self._new_categories = config.new_categories
        run = TrainedRun(self._folder)
        wrong = None
        if run.facts.get("negative_rate", 1.0) != 1:
            wrong = "its model ends in a correction for --negative-rate"
        elif run.calibration is not None:
            wrong = "it is calibrated: use the run that was calibrated"
        elif config.ensemble > 1:
            wrong = "--ensemble trains new models"
        if wrong is not None:
            raise UserError(f"--from {self._folder}: cannot be continued, because {wrong}")
        self.schema: Schema = run.schema
        self.holdout: Holdout = run.holdout

    def make_model(self, source: Source) -> tf.keras.Model:
        """The model of the earlier run, read from its file, with rows for new categories.

        Args:
            source: training data.

        Raises:
            UserError: the file cannot be read.
        """
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(self._seed)
        _keras.keep_random_state_in_variables()
        model = TrainedRun(self._folder).model
        layout = models.layout_of(model)
        if not self._new_categories or layout == "ragged":
            return model
        batches = source.dataset(LARGE_BATCH_SIZE, layout=layout)
        return models.with_new_categories(model, source.schema, batches).model


def check_slots(config: RunConfig) -> None:
    """Checks that a run has one optimizer, whose slots can be saved.

    Args:
        config: configuration of the run.

    Raises:
        UserError: slots are to be saved, and the run has several models or cannot be continued.
    """
    if not config.save_slots:
        return
    if config.ensemble > 1:
        raise UserError("--save-slots: an ensemble has several optimizers and cannot be continued")
    if config.negative_rate != 1:
        raise UserError("--save-slots: a run with --negative-rate cannot be continued")


def write_slots(folder: Path, model: tf.keras.Model) -> None:
    """Writes the slots and the step of the optimizer, without its learning rate.

    Args:
        folder: the folder of the run.
        model: the trained model, compiled.
    """
    with CheckpointManager(folder / SLOTS, keep=1, background=False) as manager:
        step = int(tf.convert_to_tensor(model.optimizer.iterations))
        manager.save(step, _slots_of(model), {})


def saved_slots(config: RunConfig) -> CheckpointReader | None:
    """The slots of the run that the training starts from.

    Args:
        config: configuration of the new run.

    Returns:
        The slots; None if there are none, or they are of another optimizer.

    Raises:
        UserError: the saved slots are damaged.
    """
    if config.from_run is None:
        return None
    folder = Path(config.from_run)
    if read_run(folder).get("optimizer") != config.optimizer or not (folder / SLOTS).is_dir():
        return None
    found = CheckpointManager(folder / SLOTS).latest()
    if found is None:
        raise UserError(f"{folder / SLOTS}: has no valid slots of the optimizer")
    return found


def restore_slots(config: RunConfig, model: tf.keras.Model) -> None:
    """Gives the optimizer the slots of the run that the training starts from, if it has them.

    The slots start anew if the earlier run has another optimizer.

    Args:
        config: configuration of the new run.
        model: the model of the earlier run, compiled.

    Raises:
        UserError: the saved slots are damaged.
    """
    found = saved_slots(config)
    if found is None:
        return
    folder = Path(str(config.from_run))
    model.optimizer.build(model.trainable_variables)
    state: list[Any] = _slots_of(model)
    enlarged = [v for v in state if not _fits_saved(v, found)]
    if enlarged:
        rows = _rows_of_tables(TrainedRun(folder).model, model)
        names = {id(v.variable): v.name for v in variables_of(model)}
        by_table = {names[table]: each for table, each in rows.items() if table in names}
        state = [
            _EnlargedSlot(v, by_table[v.table]) if v in enlarged and v.table in by_table else v
            for v in state
        ]
    try:
        restore(found, state)
    except CheckpointError as e:
        raise UserError(str(e)) from e


class _EnlargedSlot:
    """A slot of a table that has more rows than when it was saved: the others have new slots."""

    def __init__(self, slot: NamedVariable, rows: np.ndarray) -> None:
        self.name, self.label, self.variable = slot.name, slot.label, slot.variable
        self._slot, self._rows = slot, rows

    def fits(self, dtype: str, shape: Sequence[int]) -> bool:
        """Whether the slot can have these rows."""
        mine = [len(self._rows), *self.variable.shape[1:]]
        return bool(self.variable.dtype.name == dtype and mine == list(shape))

    def assign(self, value: np.ndarray) -> None:
        """Sets the rows that were saved."""
        whole = np.array(self._slot.view())
        whole[self._rows] = value
        self._slot.assign(whole)


def _fits_saved(variable: NamedVariable, found: CheckpointReader) -> bool:
    entry = found.entries.get(variable.name)
    return entry is None or variable.fits(entry.dtype, entry.shape)


def _rows_of_tables(before: tf.keras.Model, after: tf.keras.Model) -> dict[int, np.ndarray]:
    """The new positions of the rows of each table, by the identity of its variable."""
    try:
        tables = models.enlarged_tables(before, after)
    except ValueError:  # other layers: the slots belong to another model
        return {}
    return {id(t.after): t.rows for t in tables}


def _slots_of(model: tf.keras.Model) -> list[NamedVariable]:
    return [
        v
        for v in variables_of(model)
        if v.name.startswith("optimizer/") and not v.label.endswith("learning_rate")
    ]
