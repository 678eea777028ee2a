"""The ratio of mean prediction and mean label."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.metrics._sums import SumsMetric


@serializable
class CalibrationRatio(SumsMetric):
    """Mean prediction / mean label, both weighted: 1 is calibrated, 1.1 is 10 % too high.

    The result is NaN if the ratio is undefined: without examples, weight or positive labels.
    Predictions of 0 and 1 are allowed. `standard_error()` is the standard deviation by chance.

    Args:
        from_logits: Whether predictions are logits, which are converted to probabilities first.
        name: Name of the metric.
        dtype: Dtype of the result; None: float32. The sums are float64.
    """

    def __init__(
        self, from_logits: bool = False, name: str = "calibration", dtype: Any = None
    ) -> None:
        super().__init__(2, name=name, dtype=dtype)
        self.from_logits = from_logits

    def terms(self, labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Prediction and label."""
        return (tf.sigmoid(predictions) if self.from_logits else predictions), labels

    def ratio(self, *sums: tf.Tensor) -> tf.Tensor:
        """Sum of predictions / sum of labels."""
        predictions, labels, _ = sums
        nan = tf.constant(float("nan"), tf.float64)
        return tf.where(labels > 0, predictions / labels, nan)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config: dict[str, Any] = super().get_config()
        return {**config, "from_logits": self.from_logits}
