"""What a finished run consists of."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

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
        scores: labels and predictions of the evaluation data.
        metrics: content of metrics.json.
        importances: permutation importance of each feature, in descending order.
        facts: content of run.json.
        uncalibrated_scores: `scores` of the model before its calibration; None if the run has no
            calibration.
        epoch_choice: how the number of epochs was chosen; None if it was given.
    """

    model: tf.keras.Model
    history: History
    scores: Scores
    metrics: dict[str, float]
    importances: list[FeatureImportance]
    facts: dict[str, Any]
    uncalibrated_scores: Scores | None = None
    epoch_choice: EpochChoice | None = None
