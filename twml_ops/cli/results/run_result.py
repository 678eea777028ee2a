"""What a finished run consists of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import tensorflow as tf

from twml_ops.analysis import scoring
from twml_ops.analysis.permutation_importance import FeatureImportance
from twml_ops.analysis.scoring import Scores
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.history import History


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
    """

    model: tf.keras.Model
    history: History
    scores: Mapping[str, Scores]
    metrics: dict[str, float]
    importances: list[FeatureImportance]
    facts: dict[str, Any]
    uncalibrated_scores: Mapping[str, Scores] | None = None
    epoch_choice: EpochChoice | None = None

    @cached_property
    def label_metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each label on the evaluation data."""
        return scoring.metrics_by_label(self.scores)

    def metrics_before(self) -> dict[str, dict[str, float]] | None:
        """The metrics before the calibration; None if the run has no calibration."""
        before = self.uncalibrated_scores
        return None if before is None else scoring.metrics_by_label(before)

    def metrics_file(self) -> dict[str, Any]:
        """The content of metrics.json."""
        return scoring.with_labels(self.metrics, self.label_metrics)
