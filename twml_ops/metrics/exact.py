"""ROC-AUC and PR-AUC without approximation, from all examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.metrics import _curves
from twml_ops.metrics._streaming import Examples, check_mergeable, flat_examples

_FIRST_ROWS = 4096

_Area = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def roc_auc(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
    """The exact area under the ROC curve, where ties count half.

    Args:
        y_true: Labels in [0, 1]. A label between 0 and 1 counts in part as either class.
        y_pred: Scores, any real numbers, with as many elements as `y_true`.
        sample_weight: Weights; default 1. Examples of weight 0 are ignored.

    Returns:
        float64 scalar; NaN without positives or negatives, or if a score is NaN.
    """
    return _area(_curves.roc_auc, *flat_examples(y_true, y_pred, sample_weight))


def average_precision(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
    """The exact average precision, Σ (recall_t − recall_t−1) · precision_t over all distinct
    scores.

    Args:
        y_true: Labels in [0, 1]. A label between 0 and 1 counts in part as either class.
        y_pred: Scores, any real numbers, with as many elements as `y_true`.
        sample_weight: Weights; default 1. Examples of weight 0 are ignored.

    Returns:
        float64 scalar; NaN without positives or if a score is NaN; 1 without negatives.
    """
    return _area(_curves.average_precision, *flat_examples(y_true, y_pred, sample_weight))


def _area(curve: _Area, labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    seen = weights != 0
    labels, predictions, weights = (
        tf.boolean_mask(x, seen) for x in (labels, predictions, weights)
    )
    order = tf.argsort(predictions, direction="DESCENDING")
    scores = tf.gather(predictions, order)
    tie = tf.cumsum(tf.cast(scores[1:] != scores[:-1], tf.int32))
    tie = tf.concat([tf.zeros([tf.minimum(tf.size(scores), 1)], tf.int32), tie], axis=0)
    halves = tf.stack([weights * labels, weights * (1 - labels)], axis=1)
    sums = tf.math.segment_sum(tf.gather(halves, order), tie)
    nan = tf.constant(_curves.NAN, tf.float64)
    return tf.where(tf.reduce_any(tf.math.is_nan(predictions)), nan, curve(sums[:, 0], sums[:, 1]))


class _ExactCurveMetric(tf.keras.metrics.Metric):
    """Stores label, prediction and weight of every example, 12 bytes, in a variable that grows.

    Because of the varying size it cannot be compiled by XLA or added up over replicas.
    """

    def __init__(self, curve: _Area, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                f"{type(self).__name__} stores every example and needs a single replica, got "
                f"{replicas}; use ROCAUC or PRAUC, whose buckets add up over replicas"
            )
        self._curve = curve
        with tf.init_scope():
            empty = tf.zeros([0, 3], tf.float32)
            self._rows = tf.Variable(empty, trainable=False, shape=[None, 3])
            self._used = tf.Variable(0, trainable=False, dtype=tf.int32)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: Labels in [0, 1], with as many elements as `y_pred`.
            y_pred: Predictions, [B], [B, 1] or any other shape.
            sample_weight: Scalar, or of the shape of the leading dimensions of `y_pred`; default 1.
                Examples of weight 0 are ignored.
        """
        self._append(flat_examples(y_true, y_pred, sample_weight))

    def _append(self, examples: Examples) -> None:
        rows = tf.cast(tf.stack(examples, axis=1), tf.float32)
        used = tf.convert_to_tensor(self._used)
        needed = used + tf.shape(rows)[0]
        tf.cond(needed > self._capacity(), lambda: self._grow(used, needed), lambda: needed)
        self._rows[used:needed].assign(rows)
        self._used.assign(needed)

    def _capacity(self) -> tf.Tensor:
        return tf.shape(self._rows.read_value())[0]

    def _grow(self, used: tf.Tensor, needed: tf.Tensor) -> tf.Tensor:
        """Doubles the size at least, so that growing costs O(1) for each example."""
        size = tf.maximum(tf.maximum(needed, 2 * self._capacity()), _FIRST_ROWS)
        spare = tf.zeros([size - used, 3], tf.float32)
        self._rows.assign(tf.concat([self._rows.read_value()[:used], spare], axis=0))
        return needed

    def _kept(self) -> Examples:
        rows = tf.cast(self._rows.read_value()[: tf.convert_to_tensor(self._used)], tf.float64)
        return Examples(rows[:, 0], rows[:, 1], rows[:, 2])

    def result(self) -> tf.Tensor:
        """The area of all examples since the last reset, a scalar."""
        return tf.cast(_area(self._curve, *self._kept()), self.dtype)

    def reset_state(self) -> None:
        """Removes all examples."""
        self._rows.assign(tf.zeros([0, 3], tf.float32))
        self._used.assign(0)

    def merge_state(self, metrics: Iterable[_ExactCurveMetric]) -> None:
        """Adds the examples of other metrics.

        Args:
            metrics: Metrics of the same class.

        Raises:
            ValueError: A metric has another class.
        """
        metrics = list(metrics)
        for other in metrics:
            check_mergeable(self, other)
        for other in metrics:
            self._append(other._kept())

    def settings(self) -> dict[str, Any]:
        """The arguments that metrics must share to be merged.

        Returns:
            An empty dict.
        """
        return {}


@serializable
class ExactROCAUC(_ExactCurveMetric):
    """The exact area under the ROC curve of all examples since the last reset.

    The metric stores 12 bytes for each example (scores are compared as float32), runs on one
    replica and cannot be compiled by XLA; `ROCAUC` has none of these limits. The result is NaN
    without positives or without negatives, or if a prediction is NaN. Predictions may be logits,
    since only their order counts.

    Args:
        name: Name of the metric.
        dtype: Dtype of the result; None: float32. The sums are float64.

    Raises:
        ValueError: The metric is created under a strategy of several replicas.
    """

    def __init__(self, name: str = "exact_roc_auc", dtype: Any = None) -> None:
        super().__init__(_curves.roc_auc, name, dtype)


@serializable
class ExactPRAUC(_ExactCurveMetric):
    """The exact average precision of all examples since the last reset.

    The result is that of scikit-learn's `average_precision_score`, but NaN instead of 0 without
    positives. It is also NaN if a prediction is NaN. For the limits see `ExactROCAUC`.

    Args:
        name: Name of the metric.
        dtype: Dtype of the result; None: float32. The sums are float64.

    Raises:
        ValueError: The metric is created under a strategy of several replicas.
    """

    def __init__(self, name: str = "exact_pr_auc", dtype: Any = None) -> None:
        super().__init__(_curves.average_precision, name, dtype)
