"""Predictions of a model for a data set, and their exact metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
    return score_labels(model, dataset, ("label",), on_batch)["label"]


def score_labels(
    model: tf.keras.Model,
    dataset: tf.data.Dataset,
    names: Sequence[str],
    on_batch: Callable[[int], None] = lambda examples: None,
    predict: Callable[[Any], Any] | None = None,
) -> dict[str, Scores]:
    """Predicts each label of each example of a data set.

    Args:
        model: model that returns probabilities [B, 1]; of several labels a dict of them by name.
        dataset: batches of (features, labels) or (features, labels, sample weights [B]), with
            labels [B, 1]; of several labels a dict of them by name.
        names: names of the labels.
        on_batch: called after each batch with its number of examples.
        predict: `predictor(model, names)`, if it exists already; None: it is made.

    Returns:
        For each label: its values, predictions and sample weights in the order of the data set.

    Raises:
        ValueError: a prediction is NaN or infinite.
    """
    predict = predict or predictor(model, names)
    labels: list[Any] = [np.zeros((0, len(names)), np.float32)]
    predictions, weights = [labels[0]], []
    start = time.perf_counter()
    for features, batch_labels, *batch_weights in dataset:
        labels.append(by_column(batch_labels, names))
        predictions.append(predict(features).reshape(-1, len(names)))
        weights += [w.numpy().reshape(-1) for w in batch_weights]
        on_batch(len(labels[-1]))
    seconds = time.perf_counter() - start
    y, p = np.concatenate(labels), np.concatenate(predictions)
    check_predictions(p)
    w = np.concatenate(weights) if weights else None
    return {
        name: Scores(np.ascontiguousarray(y[:, i]), np.ascontiguousarray(p[:, i]), seconds, w)
        for i, name in enumerate(names)
    }


def check_predictions(predictions: npt.NDArray[np.float32], first: int = 0) -> None:
    """Checks the predictions of consecutive examples.

    Args:
        predictions: float32 [B, number of labels].
        first: number of the first of the examples.

    Raises:
        ValueError: one is NaN or infinite.
    """
    if not np.isfinite(predictions).all():
        row, column = np.argwhere(~np.isfinite(predictions))[0]
        raise ValueError(
            f"the prediction for example {first + row} must be finite, got "
            f"{predictions[row, column]}: check the data for NaN"
        )


def by_column(values: Any, names: Sequence[str]) -> npt.NDArray[Any]:
    """Labels or outputs of a batch as one array.

    Args:
        values: tensor [B, 1] or [B]; of several labels a dict of them by name. Examples without
            labels have one column of zeros, whatever the number of labels is.
        names: names of the labels.

    Returns:
        float32 [B, number of labels].
    """
    columns = [values[n] for n in names] if isinstance(values, Mapping) else [values] * len(names)
    return np.stack([column.numpy().reshape(-1) for column in columns], axis=1)


def predictor(model: tf.keras.Model, names: Sequence[str] = ("label",)) -> Callable[[Any], Any]:
    """Compiles a model into a function for predictions.

    Args:
        model: model that returns probabilities [B, 1]; of several labels a dict of them by name.
        names: names of the labels.

    Returns:
        A function: features of a batch → probabilities, float32 array [B]; of several labels [B,
        number of labels].
    """
    call = compiled(lambda features: model(features, training=False))
    width = (len(names),) if len(names) > 1 else ()
    return lambda features: by_column(call(features), names).reshape(-1, *width)


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


def metrics_by_label(scores: Mapping[str, Scores]) -> dict[str, dict[str, float]]:
    """Computes the metrics that METRICS names for each label."""
    return {label: metrics(of_label) for label, of_label in scores.items()}


def undefined_metrics(scores: Mapping[str, Scores], data: str) -> list[str]:
    """A sentence for each label of which some metrics are undefined.

    Args:
        scores: labels and predictions of each label.
        data: name of the data set.

    Returns:
        The reasons: no examples, no weights, or labels of one value.
    """
    found = []
    for name, of_label in scores.items():
        labels, weights = of_label.labels, of_label.weights
        counted = labels if weights is None else labels[weights > 0]
        values = np.unique(counted)
        if len(values) > 1:
            continue
        reason = f"{data} has no examples"
        if len(values) == 1:
            reason = f"{name} is {values[0]:g} in all examples of {data}"
        elif len(labels):
            reason = f"all sample weights of {data} are 0"
        found.append(f"{reason}: some metrics are undefined.")
    return found


def with_labels(
    metrics: Mapping[str, float], by_label: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The content of metrics.json.

    Args:
        metrics: means over the labels, and other figures.
        by_label: metrics of each label.

    Returns:
        `metrics`, and the metrics of each label under "labels" if there are several.
    """
    labels = {"labels": {k: dict(m) for k, m in by_label.items()}} if len(by_label) > 1 else {}
    return {**metrics, **labels}


def mean_metrics(by_label: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the labels.

    Args:
        by_label: metrics of each label.

    Returns:
        The means; with a single label, the metrics of this label.
    """
    first, *others = by_label.values()
    if not others:
        return dict(first)
    return {key: float(np.mean([m[key] for m in by_label.values()])) for key in first}


def log_loss(
    y: npt.NDArray[Any], p: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> float:
    """Computes the log loss (binary cross-entropy), the mean of −y ln p − (1 − y) ln(1 − p).

    Args:
        y: labels [n]; or [n, number of labels], over all of which the mean is taken.
        p: predicted probabilities of the same shape, which are clipped to [1e-7, 1 − 1e-7].
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
