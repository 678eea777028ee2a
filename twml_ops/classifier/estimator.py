"""The estimator: parameters of a training, and its methods on data frames and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from twml_ops._frames import has_text_names, name_of
from twml_ops.classifier import scikit_learn
from twml_ops.classifier.examples import TrainingExamples, column_of
from twml_ops.classifier.figures import Plots
from twml_ops.classifier.fitted import Fitted, clear_errors
from twml_ops.classifier.labels import encoded
from twml_ops.training.config import AUTO, DEFAULT, RunConfig

if TYPE_CHECKING:
    from twml_ops.analysis.explanation import Explanation
    from twml_ops.analysis.scoring import Scores
    from twml_ops.data import Schema
    from twml_ops.report.run_files import TableDtype
    from twml_ops.training import Reporter
    from twml_ops.training.results import RunResult

_FIELDS = {"options": "model_options"}  # parameters whose fields have other names
_AT_LEAST_1 = ("batch_size", "epochs", "max_epochs", "patience", "ensemble", "cache_rows")


class Classifier(scikit_learn.Parameters):
    """A binary classifier, which trains and predicts as `twml-ops train` and `twml-ops predict` do.

    It has the interface of a scikit-learn estimator; scikit-learn need not be installed. Examples
    are data frames of pandas or Polars, Arrow tables, other objects with one of the Arrow
    interchange protocols, or arrays. The kind of a column (numbers, categories, lists of them or
    times) follows from its type, name and values, or from the arguments of `fit`.

    The arguments are fields of `twml_ops.training.RunConfig`, with its defaults.

    Args:
        model: name of the model, "default": the one that suits the features, "auto": the model and
            its options are chosen, or FILE.py:FUNCTION of a function that builds one.
        options: options of the model by name, of a model that is named; None: its defaults.
        optimizer: name of the optimizer.
        learning_rate: initial learning rate; None: the default of the optimizer and the model.
        batch_size: number of examples in a batch; None: 256, for the model dcn up to 1,024 with the
            number of examples.
        epochs: passes over the training data; None: chosen by early stopping.
        seed: seed of the initial weights, of dropout and of the order of the examples.
        validation: which part of the training data is used for early stopping; "none": no part.
        validation_share: share of the training data that this part has.
        patience: epochs without a lower validation loss after which training stops.
        max_epochs: number of epochs after which it stops in any case.
        refit: whether a new model is then trained on all training data.
        positive_weight: factor of the weights of positive examples in training.
        negative_rate: share of the negative examples that is used for training.
        ensemble: number of models that are trained with different seeds.
        time_limit: seconds after which the search of the model "auto" starts no further trial.
        time_features: categories to make of the times of the examples, in UTC: "hour", "weekday",
            "month", "hour_of_week"; of another column of times "COLUMN.hour" and so on.
        storage: folder for the rows of large tables; None: all tables are in memory.
        cache_rows: with `storage`: rows of a table in memory.
        verbose: 0: warnings only; 1: prints what `twml-ops train` prints, with progress bars.

    Attributes:
        classes_: the two classes; the first one is the negative class.
        n_features_in_: number of columns of the examples, without labels and weights.
        feature_names_in_: their names; there is no such attribute if they have none.
        schema_: what each column is, a `twml_ops.data.Schema`.
        metrics_: the metrics on the evaluation data of `fit`, as metrics.json has them.
    """

    _estimator_type = "classifier"  # of scikit-learn before 1.6

    def __init__(
        self,
        model: str = RunConfig.model,
        *,
        options: Mapping[str, Any] | None = None,
        optimizer: str = RunConfig.optimizer,
        learning_rate: float | None = RunConfig.learning_rate,
        batch_size: int | None = RunConfig.batch_size,
        epochs: int | None = RunConfig.epochs,
        seed: int = RunConfig.seed,
        validation: str = RunConfig.validation,
        validation_share: float = RunConfig.validation_share,
        patience: int = RunConfig.patience,
        max_epochs: int = RunConfig.max_epochs,
        refit: bool = RunConfig.refit,
        positive_weight: float = RunConfig.positive_weight,
        negative_rate: float = RunConfig.negative_rate,
        ensemble: int = RunConfig.ensemble,
        time_limit: float | None = RunConfig.time_limit,
        time_features: Sequence[str] = (),
        storage: str | None = RunConfig.storage,
        cache_rows: int = RunConfig.cache_rows,
        verbose: int = 0,
    ) -> None:
        # They are kept as they are, as scikit-learn demands; `fit` checks them.
        self.model = model
        self.options = options
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.seed = seed
        self.validation = validation
        self.validation_share = validation_share
        self.patience = patience
        self.max_epochs = max_epochs
        self.refit = refit
        self.positive_weight = positive_weight
        self.negative_rate = negative_rate
        self.ensemble = ensemble
        self.time_limit = time_limit
        self.time_features = time_features
        self.storage = storage
        self.cache_rows = cache_rows
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        label: str | None = None,
        time: str | None = None,
        group: str | None = None,
        weight: str | None = None,
        categorical: Sequence[str] = (),
        numeric: Sequence[str] = (),
        drop: Sequence[str] = (),
        eval: Any = None,
    ) -> Classifier:
        """Trains a model. If it fails, an earlier one is kept.

        In several threads one training waits for the other: their seeds belong to the process.

        With labels in a column it does what `twml-ops train` does: without `eval` the last fifth of
        the examples (the latest, if a column has times) is held out, and the model is evaluated on
        it. With labels in `y` it is trained on all examples, as callers of scikit-learn hold out
        examples themselves; without `eval` the metrics are then of the training data.

        Args:
            X: examples: a data frame, or an array [rows, columns].
            y: their labels, of two classes; None: they are in the column `label` of `X`.
            sample_weight: a weight for each example; None: see `weight`.
            label: name of the column of labels; None: `label`. Not together with `y`.
            time: name of the column with the times of the examples; None: one that looks like it.
            group: name of the column that examples of one user or request share.
            weight: name of the column of sample weights. Not together with `sample_weight`.
            categorical: names of columns of categories.
            numeric: names of columns of numbers.
            drop: names of columns that are not used.
            eval: examples to evaluate on, like `X`; of arrays a pair (X, y).

        Returns:
            The estimator itself.

        Raises:
            TypeError: `X` is no table and no array.
            ValueError: a parameter is wrong, a column is missing, the labels are not of two
                classes, or the data cannot be read.
        """
        from twml_ops.data.column_uses import without_warnings

        columns = {"time": time, "group": group, "weight": weight, "label": label}
        lists = {"categorical": categorical, "numeric": numeric, "drop": drop}
        given = TrainingExamples.of(X, y, sample_weight, columns, lists)
        config = self._config(given, name_of(X))
        held_out = None if eval is None else given.more(eval)
        with clear_errors(), without_warnings():  # `verbose` prints the columns, `schema_` has them
            result = self._train(config, given, held_out)
            names = [n for n in given.table.column_names if n not in (given.label, given.weight)]
            self._fitted = Fitted.of(result, names, has_text_names(X), given.classes)
        return self

    def _config(self, given: TrainingExamples, name: str) -> RunConfig:
        """The configuration that the parameters and the columns say.

        Raises:
            ValueError: a parameter has the wrong type, or is out of range.
        """
        values: dict[str, Any] = {}
        for key, value in self.get_params().items():
            if key == "verbose":
                continue
            value = value.item() if isinstance(value, np.generic) else value
            values[_FIELDS.get(key, key)] = value
            if key in _AT_LEAST_1 and isinstance(value, int) and value < 1:
                raise ValueError(f"{key} must be at least 1, got {value}")
        values["model_options"] = dict(self.options or {})
        if isinstance(self.time_features, str):
            raise ValueError(f"time_features: expected a list of names, got {self.time_features!r}")
        values["time_features"] = list(self.time_features or ())
        if self.options and self.model in (AUTO, DEFAULT):
            raise ValueError(f"options: expected the name of a model as well, got {self.model!r}")
        with clear_errors():
            return RunConfig.from_json({"data": name, **values, **given.uses})

    def _train(
        self, config: RunConfig, given: TrainingExamples, held_out: pa.Table | None
    ) -> RunResult:
        from twml_ops.data.arrow import TableSource
        from twml_ops.training import train
        from twml_ops.training.model_options import builder_of, check_options

        if config.model not in (AUTO, DEFAULT):
            check_options(config.model, builder_of(config.model), config.model_options)
        source = TableSource(config.data, given.table, uses=config.uses)
        evaluation = None
        if held_out is not None:
            evaluation = TableSource(f"{config.data} (eval)", held_out, schema=source.schema)
        elif given.all_rows:  # a reader of its own, as --eval of the command has
            evaluation = TableSource(config.data, given.table, schema=source.schema)
        return train(config, source, evaluation, reporter=self._reporter())

    def _reporter(self) -> Reporter:
        if self.verbose:
            from twml_ops.cli.console import make_console
            from twml_ops.cli.reporter import ConsoleReporter

            return ConsoleReporter(make_console())
        from twml_ops.classifier.warning_reporter import Warner

        return Warner()

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of the two classes.

        Args:
            X: examples with the columns of the features: a data frame, whose columns are found by
                name, in any order and beside others, or an array, by position.

        Returns:
            float64 [rows, 2], in the order of `classes_`.

        Raises:
            TypeError: `X` is no table and no array.
            ValueError: there is no model yet, a column is missing, or the data cannot be read.
        """
        fitted = self._require("predict_proba")
        with clear_errors():
            positive = fitted.positive(X, self._reporter()).astype(np.float64)
        return np.stack([1.0 - positive, positive], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each example.

        Args:
            X: see `predict_proba`.

        Returns:
            Items of `classes_`, [rows].

        Raises:
            TypeError: see `predict_proba`.
            ValueError: see `predict_proba`.
        """
        self._require("predict")
        probabilities = self.predict_proba(X)
        return self.classes_[np.argmax(probabilities, axis=1)]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The share of examples whose class is predicted.

        Args:
            X: examples; see `predict_proba`.
            y: their labels; None: they are in the column of labels of `X`.
            sample_weight: a weight for each example; None: all count once.

        Returns:
            The accuracy.

        Raises:
            TypeError: see `predict_proba`.
            ValueError: see `predict_proba`, or a label is missing or of neither class.
        """
        fitted = self._require("score")
        name = fitted.schema.labels[0]
        labels = encoded(name, column_of(X, name) if y is None else y, self.classes_)
        right = self.predict(X) == self.classes_[np.asarray(labels)]
        return float(np.average(right, weights=sample_weight))

    def evaluate(self, X: Any, y: Any = None, sample_weight: Any = None) -> dict[str, float]:
        """The metrics that `twml-ops evaluate` computes.

        Args:
            X: examples; see `predict_proba`.
            y: their labels; None: they are in the column of labels of `X`.
            sample_weight: a weight for each example; None: the column of weights of the training,
                if `X` has it.

        Returns:
            Metric by name.

        Raises:
            TypeError: see `predict_proba`.
            ValueError: see `predict_proba`, or a label is missing or of neither class.
        """
        from twml_ops.analysis import scoring

        scores = self._scores(X, y, sample_weight)
        return scoring.mean_metrics(scoring.metrics_by_label({"label": scores}))

    def explain(
        self, X: Any, y: Any = None, *, against: Any = None, rows: int = 8192
    ) -> Explanation:
        """The importance, the coverage and the drift of each feature, as of `twml-ops explain`.

        Args:
            X: examples; see `predict_proba`.
            y: their labels; None: they are in the column of labels of `X`.
            against: examples with labels to compare them with, such as older ones, as of `eval` of
                `fit`; None: there is no comparison.
            rows: size of the sample for the permutation importance.

        Returns:
            The analysis, with `features` in descending order of importance.

        Raises:
            TypeError: see `predict_proba`.
            ValueError: see `predict_proba`, or a label is missing or of neither class.
        """
        fitted = self._require("explain")
        with clear_errors():
            from twml_ops.training.evaluation import explain_sources

            source, other = fitted.labelled_source(X, y), None
            if against is not None:
                old, labels = against if isinstance(against, tuple) else (against, None)
                other = fitted.labelled_source(old, labels, " (against)")
            seed = fitted.facts["seed"]
            reporter = self._reporter()
            return explain_sources(
                fitted.model, fitted.labelled_schema, source, other, rows, seed, reporter
            )

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Writes the folder of a run, as `twml-ops train --out` does, without TensorBoard logs.

        `twml-ops predict`, `evaluate`, `explain`, `export` and `calibrate` read it.

        Args:
            folder: folder to create.
            overwrite: whether a finished run is replaced.

        Raises:
            ValueError: there is no model yet, there is something else, or it cannot be written.
        """
        fitted = self._require("save")
        with clear_errors():
            fitted.save(Path(folder), overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Classifier:
        """Reads the folder of a run that `save` or `twml-ops train` has written.

        Args:
            folder: the folder.

        Returns:
            A fitted estimator with the parameters of the run.

        Raises:
            ValueError: it is no finished run, has several labels, or its model cannot be read.
        """
        with clear_errors():
            fitted = Fitted.load(Path(folder))
        known = {_FIELDS.get(name, name): name for name in cls.parameter_names()}
        params = {known[f]: value for f, value in fitted.facts.items() if f in known}
        made = cls(**{**params, "options": params.get("options") or None})
        made._fitted = fitted
        return made

    def to_saved_model(
        self, folder: str | Path, *, stock: bool = True, tables: TableDtype = "float32"
    ) -> None:
        """Writes a SavedModel, as `twml-ops export` does.

        Args:
            folder: folder to create.
            stock: whether any TensorFlow can load it, without the op library.
            tables: with `stock`: data type of the rows of large tables, not int4.

        Raises:
            ValueError: there is no model yet, `tables` is not available, or the folder exists.
        """
        if tables == "int4" or (tables != "float32" and not stock):
            raise ValueError(
                "tables: expected float32, or with stock=True another type that a SavedModel has, "
                f"got {tables!r}"
            )
        self._export(folder, "stock" if stock else "fast", tables)

    def to_scorer(self, folder: str | Path, *, tables: TableDtype = "float32") -> None:
        """Writes a scorer for `twml_ops.core.Scorer` and `twml-ops serve`, without TensorFlow.

        Args:
            folder: folder to create.
            tables: data type of the rows of large tables.

        Raises:
            ValueError: there is no model yet, or the folder exists.
        """
        self._export(folder, "scorer", tables)

    def _export(self, folder: str | Path, form: Any, tables: TableDtype) -> None:
        fitted = self._require("export")
        with clear_errors():
            from twml_ops.report.run_files import write_export
            from twml_ops.training.run_folder import new_export

            with new_export(Path(folder)) as part:
                write_export(part, fitted.model, fitted.schema, form, tables, fitted.known)

    @property
    def plot(self) -> Plots:
        """The plots of the report as figures of Matplotlib."""

        def result() -> RunResult:
            found = self._require("plot").result
            if found is None:
                raise ValueError(
                    "the folder of a run has no evaluation data and no record of the training, "
                    "its report has the plots; reliability and score_histogram take examples"
                )
            return found

        def scores(X: Any, y: Any) -> Scores:
            if X is not None:
                return self._scores(X, y, None)
            return next(iter(result().scores.values()))

        return Plots(result, scores)

    def _require(self, method: str) -> Fitted:
        found: Fitted | None = vars(self).get("_fitted")
        if found is None:
            raise scikit_learn.not_fitted(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' before "
                f"'{method}'."
            )
        return found

    def _of_fitted(self, name: str) -> Fitted:
        found: Fitted | None = vars(self).get("_fitted")
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no {name} before 'fit'")
        return found

    @property
    def classes_(self) -> np.ndarray:
        """The two classes; the first one is the negative class."""
        return self._of_fitted("classes_").classes

    @property
    def n_features_in_(self) -> int:
        """Number of columns of the examples, without labels and weights."""
        return len(self._of_fitted("n_features_in_").columns)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the columns of the examples, if they have names."""
        fitted = self._of_fitted("feature_names_in_")
        if not fitted.named:
            raise AttributeError("feature_names_in_: the columns of an array have no names")
        return np.array(fitted.columns, object)

    @property
    def schema_(self) -> Schema:
        """What each column is."""
        return self._of_fitted("schema_").schema

    @property
    def metrics_(self) -> dict[str, Any]:
        """The metrics on the evaluation data of `fit`."""
        return dict(self._of_fitted("metrics_").metrics)

    def _scores(self, X: Any, y: Any, sample_weight: Any) -> Scores:
        fitted = self._require("evaluate")
        with clear_errors():
            return fitted.scores_of(X, y, sample_weight, self._reporter())

    def __sklearn_is_fitted__(self) -> bool:
        return vars(self).get("_fitted") is not None

    def __sklearn_tags__(self) -> Any:
        return scikit_learn.classifier_tags()
