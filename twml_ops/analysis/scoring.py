"""Predictions over a data set, and the exact metrics of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

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
    """What a model says of a data set.

    Attributes:
        labels: float32 [n].
        predictions: float32 [n], probabilities.
        seconds: wall time of reading and predicting.
    """

    labels: npt.NDArray[np.float32]
    predictions: npt.NDArray[np.float32]
    seconds: float


def score(
    model: tf.keras.Model, dataset: tf.data.Dataset, seen: Callable[[int], None] = lambda n: None
) -> Scores:
    """Predicts every example of `dataset`.

    Args:
        model: gives probabilities [B, 1].
        dataset: batches of (features, labels [B, 1]).
        seen: called with the number of examples after every batch.

    Raises:
        ValueError: a prediction is not finite.
    """
    predict = predictor(model)
    labels, predictions = [], []
    start = time.perf_counter()
    for features, batch_labels in dataset:
        labels.append(batch_labels.numpy().reshape(-1))
        predictions.append(predict(features))
        seen(len(labels[-1]))
    seconds = time.perf_counter() - start
    y, p = (np.concatenate(a) if a else np.zeros(0, np.float32) for a in (labels, predictions))
    if not np.isfinite(p).all():
        row = int(np.flatnonzero(~np.isfinite(p))[0])
        raise ValueError(
            f"the prediction for example {row} is {p[row]}: is there a NaN in the data?"
        )
    return Scores(y, p, seconds)


def predictor(model: tf.keras.Model) -> Callable[[Any], Any]:
    """`model` as a compiled function: features of a batch → probabilities, float32 [B]."""
    call = compiled(lambda features: model(features, training=False))
    return lambda features: call(features).numpy().reshape(-1)


def compiled(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` of a batch's features as one graph for batches of any size."""
    graph: list[Callable[[Any], Any]] = []

    def call(features: Any) -> Any:
        if not graph:
            spec = tf.nest.map_structure(_any_size, features)
            graph.append(tf.function(function, input_signature=[spec]))
        return graph[0](features)

    return call


def _any_size(x: Any) -> tf.TypeSpec:
    if isinstance(x, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, None], x.dtype, 1, x.row_splits.dtype)
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)


def metrics(scores: Scores) -> dict[str, float]:
    """The metrics of METRICS, in its order; NaN where one is undefined (say, no positives).

    AUC and PR AUC (average precision) are exact, from the sorted scores, not from thresholds.
    """
    y, p, _ = scores
    return {**_ranking(y, p), **_probability(y, p)}


def log_loss(y: npt.NDArray[Any], p: npt.NDArray[Any]) -> float:
    """Mean of −y log p − (1 − y) log(1 − p), p clipped to [1e-7, 1 − 1e-7]; NaN of nothing."""
    p = np.clip(p.astype(np.float64), EPSILON, 1 - EPSILON)
    losses = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    return float(losses.mean()) if len(y) else math.nan


def standard_errors(scores: Scores) -> dict[str, float]:
    """The standard errors of those metrics that have one; NaN where one is undefined."""
    out = {}
    for metric in (NormalizedEntropy(), RelativeCrossEntropy(), CalibrationRatio()):
        metric.update_state(scores.labels, scores.predictions)
        out[metric.name] = float(metric.standard_error())
    return out


def calibration_error(scores: Scores, bins: int = 20) -> float:
    """Mean of |mean prediction − mean label| over bins of equal size; NaN of nothing.

    The expected calibration error of Naeini et al. (2015), in bins by rank.
    """
    y, p, _ = scores
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    gaps = [
        len(i) * abs(float(p[i].mean(dtype=float) - y[i].mean(dtype=float)))
        for i in parts
        if len(i)
    ]
    return sum(gaps) / len(y) if len(y) else math.nan


def _ranking(y: npt.NDArray[Any], p: npt.NDArray[Any]) -> dict[str, float]:
    if len(np.unique(y)) < 2:
        return {"auc": math.nan, "pr_auc": math.nan}
    return {"auc": float(roc_auc(y, p)), "pr_auc": float(average_precision(y, p))}


def _probability(y: npt.NDArray[Any], p: npt.NDArray[Any]) -> dict[str, float]:
    out = {"log_loss": log_loss(y, p)}
    for metric in (NormalizedEntropy(), RelativeCrossEntropy(), CalibrationRatio()):
        metric.update_state(y, p)
        out[metric.name] = float(metric.result())
    return out
