"""What a training has made: a model, and what is needed to predict with it and to save it."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from twml_ops._frames import column_names, is_table, name_of, to_table
from twml_ops.classifier.examples import column_of, free_name, sample_weights, with_column
from twml_ops.classifier.labels import encoded
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

    from twml_ops._known_categories import KnownCategories
    from twml_ops.analysis.scoring import Scores
    from twml_ops.data import Schema
    from twml_ops.data.arrow import TableSource
    from twml_ops.training import Reporter
    from twml_ops.training.drift import Statistics
    from twml_ops.training.results import RunResult

FACTS = "classifier"
"""The entry of run.json with the classes and the columns; runs of the command have none."""


@dataclasses.dataclass
class Fitted:
    """A trained model with its classes and columns.

    Attributes:
        model: the model, without its optimizer.
        facts: content of run.json.
        columns: the columns of the features, as they were given.
        named: whether they have names, unlike the columns of an array.
        classes: the two classes.
        metrics: content of metrics.json.
        known: the categories of the training data; None if they have none.
        statistics: the histograms of its features; None if there are none.
        result: the run, without its model; None if it was read from a folder.
        report: the report of a run that was read from a folder.
        predictor: the model as a compiled function, once it has predicted.
    """

    model: tf.keras.Model
    facts: dict[str, Any]
    columns: list[str]
    named: bool
    classes: np.ndarray
    metrics: dict[str, Any]
    known: KnownCategories | None
    statistics: Statistics | None
    result: RunResult | None = None
    report: str | None = None
    predictor: Callable[[Any], Any] | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(
        cls, result: RunResult, columns: Sequence[str], named: bool, classes: np.ndarray
    ) -> Fitted:
        """What a training has made.

        Args:
            result: the run.
            columns: the columns of the features.
            named: whether they have names.
            classes: the two classes.
        """
        from twml_ops.report.run_files import times_of
        from twml_ops.training.model import without_optimizer

        own = {"classes": classes.tolist(), "columns": list(columns), "named": named}
        facts = {**result.facts, **times_of(result.phases), FACTS: own}
        return cls(
            without_optimizer(result.model),
            facts,
            list(columns),
            named,
            classes,
            result.metrics_file(),
            result.known,
            result.statistics,
            dataclasses.replace(result, model=None, facts=facts, phases=None),
        )

    @classmethod
    def load(cls, folder: Path) -> Fitted:
        """Reads the folder of a run.

        Raises:
            UserError: it is no finished run, has several labels, or its model cannot be read.
            ValueError: a file of it is damaged.
        """
        from twml_ops._known_categories import KnownCategories
        from twml_ops.data.errors import shown
        from twml_ops.training.drift import Statistics
        from twml_ops.training.run_folder import (
            METRICS_FILE,
            REPORT_FILE,
            RUN_FILE,
            damage_is_reported,
            read_json,
        )
        from twml_ops.training.trained_run import TrainedRun

        run = TrainedRun(folder)
        if len(run.schema.labels) != 1:
            names = ", ".join(run.schema.labels)
            raise UserError(f"{folder}: a Classifier has one label, this run has {names}")
        features = run.schema.without_labels().columns
        default = {"classes": [0, 1], "columns": list(features), "named": True}
        with damage_is_reported(folder / RUN_FILE):
            own = run.facts.get(FACTS, default)
            columns, named = [*map(str, own["columns"])], bool(own["named"])
            classes = list(own["classes"])
            is_text = isinstance(classes[0], str)
            kinds = str if is_text else bool | int | float
            if len(classes) != 2 or not all(isinstance(x, kinds) for x in classes):
                raise ValueError(f"expected two texts or numbers as classes, got {shown(classes)}")
        with damage_is_reported(folder / REPORT_FILE):
            report = (folder / REPORT_FILE).read_text(encoding="utf-8")
        return cls(
            run.model,
            run.facts,
            columns,
            named,
            np.array(classes, object if is_text else None),
            read_json(folder / METRICS_FILE),
            KnownCategories.load(folder),
            Statistics.load(folder),
            report=report,
        )

    def save(self, folder: Path, overwrite: bool) -> None:
        """Writes the folder of a run.

        Raises:
            UserError: there is something else, or it cannot be written.
        """
        from twml_ops.report.run_files import write_files, write_model, write_saved_model
        from twml_ops.training import run_folder

        with run_folder.new_folder(folder, overwrite) as part:
            write_model(part, folder, self.model)
            for seen in (self.known, self.statistics):
                if seen is not None:
                    seen.save(part)
            if self.result is not None:
                write_files(part, dataclasses.replace(self.result, model=self.model))
                return
            write_saved_model(part / run_folder.SAVED_MODEL, self.model)
            report = self.report or ""
            (part / run_folder.REPORT_FILE).write_text(report, encoding="utf-8")
            run_folder.write_json(part / run_folder.METRICS_FILE, self.metrics)
            run_folder.write_json(part / run_folder.RUN_FILE, self.facts)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with the bytes of the file of the model."""
        from twml_ops.layers import save_model
        from twml_ops.training.run_folder import MODEL_FILE

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / MODEL_FILE
            save_model(self.model, file)
            return {**vars(self), "model": file.read_bytes(), "predictor": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        import tensorflow as tf

        from twml_ops.training.run_folder import MODEL_FILE
        from twml_ops.training.trained_run import CUSTOM

        assert CUSTOM  # these packages register their classes
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / MODEL_FILE
            file.write_bytes(state["model"])
            model = tf.keras.models.load_model(str(file), compile=False)
        vars(self).update(state, model=model)

    @property
    def schema(self) -> Schema:
        """The features and the label of the model."""
        from twml_ops.data import Schema

        return Schema.from_dict(self.facts["schema"])

    def table(self, data: Any) -> pa.Table:
        """Examples with the columns that the model takes, by name; without names by position.

        Raises:
            TypeError: it is no table and no array.
            ValueError: columns are missing.
        """
        by_position = not is_table(data) or not self.named
        table = to_table(data, None if by_position else self.schema.columns)
        count = len(self.columns)
        if by_position and is_table(data) and {*self.columns} <= {*table.column_names}:
            return table  # of a model for arrays: the names x0, x1, ...
        if by_position:
            if table.num_columns != count:
                raise ValueError(
                    f"X has {table.num_columns} features, but Classifier is expecting {count} "
                    "features as input"
                )
            return table.rename_columns(self.columns)
        from twml_ops.data.errors import listed
        from twml_ops.data.schema import SPARSE_VALUES

        needed = [n for n in self.schema.without_labels().columns if n != SPARSE_VALUES]
        missing = [n for n in needed if n not in table.column_names]
        if missing:
            raise ValueError(
                f"{name_of(data)} lacks the columns {listed(missing)}, with which the model was "
                f"trained; it has {listed([*map(str, column_names(data))])}"
            )
        return table

    def source(self, name: str, table: pa.Table, schema: Schema) -> TableSource:
        """The examples of a table as the model was trained on them."""
        from twml_ops.data.arrow import TableSource

        return TableSource(name, table, schema=schema)

    def positive(self, data: Any, reporter: Reporter) -> np.ndarray:
        """The probability of the second class for each example, float32 [rows].

        Raises:
            TypeError: it is no table and no array.
            ValueError: data cannot be read.
        """
        table = self.table(data)
        source = self.source(name_of(data), table, self.schema.without_labels())
        return self.scores(source, reporter, self.schema.labels).predictions

    def scores(
        self, source: TableSource, reporter: Reporter, labels: Sequence[str] | None = None
    ) -> Scores:
        """The predictions for examples; `labels` if these have none."""
        from twml_ops.data import original_errors
        from twml_ops.training.evaluation import score_source
        from twml_ops.training.sources import compared_features

        compared = compared_features(self.known, self.statistics, source)
        with original_errors(source), compared:
            scores = score_source(
                *(self.model, source, reporter, source.num_examples(), "predicting"),
                labels=labels,
                predict=self._compiled(),
            )
        return scores[self.schema.labels[0]]

    @property
    def labelled_schema(self) -> Schema:
        """The features and the label, without the other columns of a training."""
        return dataclasses.replace(self.schema, time=None, group=None, weight=None)

    def labelled_table(self, X: Any, y: Any) -> pa.Table:
        """The columns of the features, and the labels as 0 and 1.

        Args:
            X: examples.
            y: their labels; None: they are in the column of labels of `X`.

        Raises:
            TypeError: `X` is no table and no array.
            ValueError: columns or labels are missing, or a label is of neither class.
        """
        name = self.schema.labels[0]
        labels = encoded(name, column_of(X, name) if y is None else y, self.classes)
        table = to_table(X)
        if y is None and not (is_table(X) and self.named):
            table = table.drop_columns([name])
            return self.table(table).append_column(name, labels)
        return with_column(self.table(X), name, labels)

    def labelled_source(self, X: Any, y: Any, note: str = "") -> TableSource:
        """The examples of `labelled_table`, for messages by the name of `X` and a note."""
        return self.source(name_of(X) + note, self.labelled_table(X, y), self.labelled_schema)

    def scores_of(self, X: Any, y: Any, sample_weight: Any, reporter: Reporter) -> Scores:
        """The predictions for labelled examples.

        Args:
            X: examples.
            y: their labels, as of `labelled_table`.
            sample_weight: a weight for each; None: the column of weights, if `X` has it.
            reporter: is told what happens.
        """
        schema, table, weight = self.labelled_schema, self.labelled_table(X, y), self.schema.weight
        if sample_weight is not None:
            weight = weight or free_name("sample_weight", table)
            weights = sample_weights(sample_weight, len(table))
            table = with_column(table, weight, pa.array(weights))
        if weight is not None and weight in table.column_names:
            schema = dataclasses.replace(schema, weight=weight)
        return self.scores(self.source(name_of(X), table, schema), reporter)

    def _compiled(self) -> Callable[[Any], Any]:
        """The model as a compiled function, which is made once."""
        from twml_ops.analysis import scoring

        if self.predictor is None:
            self.predictor = scoring.predictor(self.model, self.schema.labels)
        return self.predictor


_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_ARGUMENTS = {"set": "options", "out": "folder"}


@contextmanager
def clear_errors() -> Iterator[None]:
    """Errors of a training as errors of an argument, which has the name of an option there."""
    try:
        yield
    except UserError as e:

        def argument(match: re.Match[str]) -> str:
            return _ARGUMENTS.get(match[1], match[1].replace("-", "_"))

        raise ValueError(_OPTION.sub(argument, str(e))) from e
