"""What a training has recorded, chosen and found. It does not import TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from twml_ops._phases import Phases
from twml_ops.training.config import RunConfig

if TYPE_CHECKING:
    import tensorflow as tf

    from twml_ops._known_categories import KnownCategories
    from twml_ops.analysis.permutation_importance import FeatureImportance
    from twml_ops.analysis.scoring import Scores
    from twml_ops.training.drift import Statistics


TREE_SHARE = "tree_share"  # an option of models, and a metric of an epoch


class LossPoint(NamedTuple):
    """One point of a learning curve.

    Attributes:
        examples: number of examples trained on since the start of the run.
        loss: mean log loss.
    """

    examples: int
    loss: float


class Epoch(NamedTuple):
    """The record of one epoch.

    Attributes:
        examples: number of examples trained on in this epoch.
        seconds: training time of this epoch, evaluation excluded.
        metrics: value of each metric by its Keras name: `loss` and, unless a cluster trained,
            `auc` on the training data, `val_loss` and `val_auc` on the monitored data, if there are
            any.
    """

    examples: int
    seconds: float
    metrics: dict[str, float]


class SpeedComparison(NamedTuple):
    """The speed of a cluster and of one process, in examples per second.

    Attributes:
        cluster: of all workers together.
        one_process: of one process on the host of the chief.
    """

    cluster: float
    one_process: float

    def warning(self) -> str | None:
        """A sentence that says that the cluster is slower; None if it is not."""
        if self.cluster >= self.one_process:
            return None
        return (
            f"This cluster is slower than one process: it trains {self.cluster:,.0f} examples/s, "
            f"and one process on the host of the chief trains {self.one_process:,.0f}. "
            "`twml-ops plan --measure` predicts how many hosts a cluster needs to be faster."
        )


@dataclasses.dataclass
class History:
    """The record of a training run.

    Attributes:
        epochs: one record per epoch.
        monitored: "validation" if choices are made on the monitored data, otherwise "evaluation".
        train_loss: learning curve on the training data. Each point is the mean since the previous
            one.
        monitored_loss: learning curve on the monitored data, one point per evaluation.
        examples: number of examples trained on.
        seconds: training time, evaluation excluded.
        parsed_bytes: bytes of the data of `--data` that this process of a cluster has parsed; 0 of
            other trainings.
        data_bytes: bytes of all training data; 0 of other trainings.
        speeds: the speed of a cluster and of one process; None if they were not compared.
    """

    epochs: list[Epoch] = dataclasses.field(default_factory=list)
    monitored: str = "evaluation"
    train_loss: list[LossPoint] = dataclasses.field(default_factory=list)
    monitored_loss: list[LossPoint] = dataclasses.field(default_factory=list)
    examples: int = 0
    seconds: float = 0.0
    parsed_bytes: int = 0
    data_bytes: int = 0
    speeds: SpeedComparison | None = None

    def to_json(self) -> dict[str, Any]:
        """The attributes as values that JSON can hold."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: [list(x) for x in v] if isinstance(v, list) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> History:
        """What `to_json` returned."""
        kinds: dict[str, Any] = {
            "epochs": Epoch,
            "train_loss": LossPoint,
            "monitored_loss": LossPoint,
        }
        lists = {name: [kind(*x) for x in values[name]] for name, kind in kinds.items()}
        speeds = values.get("speeds")
        return cls(
            **{**values, **lists, "speeds": None if speeds is None else SpeedComparison(*speeds)}
        )


class FittedModel(NamedTuple):
    """A trained model and the record of its training."""

    model: tf.keras.Model
    history: History


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

    @property
    def tree_share(self) -> float | None:
        """The weight of the boosted trees that was chosen with the epochs; None: none was."""
        return self.history.epochs[self.epochs - 1].metrics.get(TREE_SHARE)

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


Outcome = Literal["finished", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A model that was trained on one part of the training data and judged on the other one.

    Attributes:
        model: name of the model.
        model_options: options of the model; the others had their defaults.
        learning_rate: learning rate.
        losses: log loss on the validation data after each epoch.
        seconds: duration of the trial.
        outcome: "finished" by early stopping; "stopped" earlier, because it was worse than others
            or the time was over; or "failed".
        note: why it stopped or failed.
    """

    model: str
    model_options: dict[str, Any]
    learning_rate: float
    losses: tuple[float, ...]
    seconds: float
    outcome: Outcome
    note: str = ""

    @property
    def log_loss(self) -> float:
        """The lowest loss; infinite if the trial is not finished, so that it is never the best."""
        return min(self.losses) if self.outcome == "finished" else math.inf

    @property
    def epochs(self) -> int:
        """The number of epochs with the lowest loss; 0 if there was none."""
        return self.losses.index(min(self.losses)) + 1 if self.losses else 0

    def facts(self) -> dict[str, Any]:
        """The trial as an entry of run.json."""
        return {**dataclasses.asdict(self), "losses": list(self.losses)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Trial:
        """The trial of an entry of run.json, in which null is an infinite loss."""
        losses = tuple(math.inf if loss is None else loss for loss in facts["losses"])
        return cls(**{**facts, "losses": losses})


@dataclasses.dataclass(frozen=True)
class ModelChoice:
    """The trials of `--model auto`, or of the default model and the one that it is compared with.

    Attributes:
        trials: in the order in which they were done.
        seconds: duration of the search.
        time_limit: seconds after which no further trial was to start; None: there is no limit.
    """

    trials: tuple[Trial, ...]
    seconds: float
    time_limit: float | None

    @property
    def best(self) -> int:
        """The position of the trial with the lowest loss."""
        losses = [trial.log_loss for trial in self.trials]
        return losses.index(min(losses))

    def facts(self) -> dict[str, Any]:
        """The choice as an entry of run.json."""
        return {
            "best": self.best,
            "seconds": self.seconds,
            "time_limit": self.time_limit,
            "trials": [trial.facts() for trial in self.trials],
        }


class TrialResult(NamedTuple):
    """A trial, its configuration, and the chosen number of epochs if it is finished."""

    trial: Trial
    config: RunConfig
    choice: EpochChoice | None


class Member(NamedTuple):
    """The training of one member of an ensemble.

    Attributes:
        seed: seed of its initial weights, of dropout and of the order of the examples.
        examples: number of examples trained on, counted once for each epoch.
        seconds: training time, evaluation excluded.
    """

    seed: int
    examples: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A finished run, from which the files of its folder and the printed summary are made.

    Attributes:
        model: the trained model.
        history: the record of its training. It is empty for a calibrated run.
        scores: labels and predictions of the evaluation data, by the name of the label.
        metrics: the metrics of metrics.json: means over the labels, and figures of the training.
        importances: permutation importance of each feature, in descending order.
        facts: content of run.json.
        uncalibrated_scores: `scores` of the model before its calibration; None if the run has no
            calibration.
        epoch_choice: how the number of epochs was chosen; None if it was given.
        known: the categories of the training data; None if they have none.
        statistics: the histograms of the features of the training data; None if they have none.
        phases: the phases of the training and their wall times; None if nothing was trained.
    """

    model: tf.keras.Model
    history: History
    scores: Mapping[str, Scores]
    metrics: dict[str, float]
    importances: list[FeatureImportance]
    facts: dict[str, Any]
    uncalibrated_scores: Mapping[str, Scores] | None = None
    epoch_choice: EpochChoice | None = None
    known: KnownCategories | None = None
    statistics: Statistics | None = None
    phases: Phases | None = None

    @cached_property
    def label_metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each label on the evaluation data."""
        from twml_ops.analysis import scoring

        return scoring.metrics_by_label(self.scores)

    def metrics_before(self) -> dict[str, dict[str, float]] | None:
        """The metrics before the calibration; None if the run has no calibration."""
        from twml_ops.analysis import scoring

        before = self.uncalibrated_scores
        return None if before is None else scoring.metrics_by_label(before)

    def metrics_file(self) -> dict[str, Any]:
        """The content of metrics.json."""
        from twml_ops.analysis import scoring

        return scoring.with_labels(self.metrics, self.label_metrics)
