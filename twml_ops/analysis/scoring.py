"""Predictions of a model for a data set, and their exact metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops._keras import AUTOGRAPH
from twml_ops.metrics import (
    CalibrationRatio,
    NormalizedEntropy,
    RelativeCrossEntropy,
    average_precision,
    roc_auc,
)

METRICS = (
    "auc",
    "pr_auc",
    "log_loss",
    "normalized_entropy",
    "rce",
    "calibration",
)
EPSILON = 1e-7


class Scores(NamedTuple):
    """The predictions of a model for a data set.

    Attributes:
        labels: float32 [n], 0 or 1.
        predictions: float32 [n], probabilities.
        seconds: wall time of reading the data and predicting.
        weights: float32 [n], sample weights; None: all examples count once.
    """

    labels: npt.NDArray[np.float32]
    predictions: npt.NDArray[np.float32]
    seconds: float
    weights: npt.NDArray[np.float32] | None = None


def score(
    model: tf.keras.Model,
    dataset: tf.data.Dataset,
    on_batch: Callable[[int], None] = lambda examples: None,
) -> Scores:
    """Predicts each example of a data set.

    Args:
        model: model that returns probabilities [B, 1].
        dataset: batches of (features, labels [B, 1]) or (features, labels, sample weights [B]).
        on_batch: called after each batch with its number of examples.

    Returns:
        Labels, predictions and sample weights in the order of the data set.

    Raises:
        ValueError: a prediction is NaN or infinite.
    """
    predict = predictor(model)
    labels, predictions, weights = [], [], []
    start = time.perf_counter()
    for features, batch_labels, *batch_weights in dataset:
        labels.append(batch_labels.numpy().reshape(-1))
        predictions.append(predict(features))
        weights += [w.numpy().reshape(-1) for w in batch_weights]
        on_batch(len(labels[-1]))
    seconds = time.perf_counter() - start
    y, p = (np.concatenate(a) if a else np.zeros(0, np.float32) for a in (labels, predictions))
    if not np.isfinite(p).all():
        row = int(np.flatnonzero(~np.isfinite(p))[0])
        raise ValueError(
            f"the prediction for example {row} must be finite, got {p[row]}: check the data for NaN"
        )
    return Scores(y, p, seconds, np.concatenate(weights) if weights else None)


def predictor(model: tf.keras.Model) -> Callable[[Any], Any]:
    """Compiles a model into a function for predictions.

    Args:
        model: model that returns probabilities [B, 1].

    Returns:
        A function: features of a batch → probabilities, float32 array [B].
    """
    call = compiled(lambda features: model(features, training=False))
    return lambda features: call(features).numpy().reshape(-1)


def compiled(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compiles a function of the features of a batch into one graph for batches of any size.

    Args:
        function: plain Python, without control flow that depends on tensors; it may call models.

    Returns:
        The compiled function.
    """
    graph: list[Callable[[Any], Any]] = []

    def call(features: Any) -> Any:
        if not graph:
            spec = tf.nest.map_structure(_any_size, features)
            graph.append(tf.function(function, input_signature=[spec], autograph=AUTOGRAPH))
        return graph[0](features)

    return call


def _any_size(x: Any) -> tf.TypeSpec:
    if isinstance(x, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, None], x.dtype, 1, x.row_splits.dtype)
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)


def metrics(scores: Scores) -> dict[str, float]:
    """Computes the metrics that METRICS names.

    ROC AUC and PR AUC (average precision) are computed from the sorted predictions, without bins.

    Args:
        scores: labels and predictions. Examples count with their weights, if they have any.

    Returns:
        Value of each metric, in the order of METRICS; NaN where it is undefined, for example
        without positives.
    """
    y, p, _, w = scores
    return {**_ranking(y, p, w), **_probability(y, p, w)}


def log_loss(
    y: npt.NDArray[Any], p: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> float:
    """Computes the log loss (binary cross-entropy), the mean of −y ln p − (1 − y) ln(1 − p).

    Args:
        y: labels [n].
        p: predicted probabilities [n], which are clipped to [1e-7, 1 − 1e-7].
        weights: sample weights [n]; None: all examples count once.

    Returns:
        The mean; NaN if there are no examples, or all weights are 0.
    """
    p = np.clip(p.astype(np.float64), EPSILON, 1 - EPSILON)
    losses = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    if weights is not None:
        return float(np.average(losses, weights=weights)) if weights.any() else math.nan
    return float(losses.mean()) if len(y) else math.nan


def standard_errors(scores: Scores) -> dict[str, float]:
    """Computes the standard errors of the metrics that have one.

    Args:
        scores: labels and predictions.

    Returns:
        Standard error by the name of the metric; NaN where it is undefined.
    """
    out = {}
    for metric in (NormalizedEntropy(), RelativeCrossEntropy(), CalibrationRatio()):
        metric.update_state(scores.labels, scores.predictions, scores.weights)
        out[metric.name] = float(metric.standard_error())
    return out


def calibration_error(scores: Scores, bins: int = 20) -> float:
    """Computes the expected calibration error.

    The examples are sorted by prediction and divided into bins of equal size. The error is the mean
    of |mean prediction − mean label| over the bins, weighted by their sizes; sample weights are not
    used (Naeini, Cooper and
    Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015).

    Args:
        scores: labels and predictions.
        bins: number of bins.

    Returns:
        The error in [0, 1]; NaN if there are no examples.
    """
    y, p = scores.labels, scores.predictions
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    gaps = [
        len(i) * abs(float(p[i].mean(dtype=float) - y[i].mean(dtype=float)))
        for i in parts
        if len(i)
    ]
    return sum(gaps) / len(y) if len(y) else math.nan


def _ranking(
    y: npt.NDArray[Any], p: npt.NDArray[Any], w: npt.NDArray[Any] | None
) -> dict[str, float]:
    if len(np.unique(y if w is None else y[w > 0])) < 2:
        return {"auc": math.nan, "pr_auc": math.nan}
    return {"auc": float(roc_auc(y, p, w)), "pr_auc": float(average_precision(y, p, w))}


def _probability(
    y: npt.NDArray[Any], p: npt.NDArray[Any], w: npt.NDArray[Any] | None
) -> dict[str, float]:
    out = {"log_loss": log_loss(y, p, w)}
    for metric in (NormalizedEntropy(), RelativeCrossEntropy(), CalibrationRatio()):
        metric.update_state(y, p, w)
        out[metric.name] = float(metric.result())
    return out
