"""Ratios of sums over the examples: predictions to labels, and cross entropy to the base rate."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.metrics._sums import SumsMetric

EPSILON = 1e-7


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
        """Returns the predictions and the labels."""
        return (tf.sigmoid(predictions) if self.from_logits else predictions), labels

    def ratio(self, *sums: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the predictions divided by the sum of the labels."""
        predictions, labels, _ = sums
        nan = tf.constant(float("nan"), tf.float64)
        return tf.where(labels > 0, predictions / labels, nan)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config: dict[str, Any] = super().get_config()
        return {**config, "from_logits": self.from_logits}


@serializable
class NormalizedEntropy(SumsMetric):
    """Log loss divided by the entropy of the base rate: 1 for a constant prediction, lower is
    better.

    NE = mean(−y log p − (1 − y) log(1 − p)) / (−r log r − (1 − r) log(1 − r)), with r = mean(y) and
    weighted means (He et al. 2014, "Practical Lessons from Predicting Clicks on Ads at Facebook").

    The result is NaN if NE is undefined: without examples or weight, or with a base rate of 0 or 1.
    `standard_error()` is the standard deviation by chance.

    Args:
        from_logits: Whether predictions are logits, whose log loss is exact without clipping.
        epsilon: Probabilities are clipped to [epsilon, 1 − epsilon], so that one certain but wrong
            prediction costs −log(epsilon), 16.1 at the default, and not infinity.
        name: Name of the metric.
        dtype: Dtype of the result; None: float32. The sums are float64.

    Raises:
        ValueError: `epsilon` is not in [0, 0.5).
    """

    def __init__(
        self,
        from_logits: bool = False,
        epsilon: float = EPSILON,
        name: str = "normalized_entropy",
        dtype: Any = None,
    ) -> None:
        if not 0 <= epsilon < 0.5:
            raise ValueError(f"epsilon must be in [0, 0.5), got {epsilon}")
        super().__init__(2, name=name, dtype=dtype)
        self.from_logits = from_logits
        self.epsilon = epsilon

    def terms(self, labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Log loss and label."""
        if self.from_logits:
            loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions)
        else:
            p = tf.clip_by_value(predictions, self.epsilon, 1 - self.epsilon)
            loss = _cross_entropy(labels, p)
        return loss, labels

    def ratio(self, *sums: tf.Tensor) -> tf.Tensor:
        """Returns the log loss divided by the entropy of the base rate."""
        loss, labels, weight = sums
        rate = labels / weight
        entropy = _cross_entropy(rate, rate)
        nan = tf.constant(float("nan"), tf.float64)
        return tf.where(entropy > 0, (loss / weight) / entropy, nan)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config: dict[str, Any] = super().get_config()
        return {**config, "from_logits": self.from_logits, "epsilon": self.epsilon}


@serializable
class RelativeCrossEntropy(NormalizedEntropy):
    """RCE = 100 · (1 − NE): the percentage of the base rate's entropy that the model explains.

    It is 0 for a constant prediction at the base rate, 100 for perfect predictions, negative for a
    model worse than the constant, and NaN where `NormalizedEntropy` is.

    Args:
        from_logits: Whether predictions are logits, whose log loss is exact without clipping.
        epsilon: Probabilities are clipped to [epsilon, 1 − epsilon]; in [0, 0.5).
        name: Name of the metric.
        dtype: Dtype of the result; None: float32. The sums are float64.

    Raises:
        ValueError: `epsilon` is not in [0, 0.5).
    """

    def __init__(
        self,
        from_logits: bool = False,
        epsilon: float = EPSILON,
        name: str = "rce",
        dtype: Any = None,
    ) -> None:
        super().__init__(from_logits=from_logits, epsilon=epsilon, name=name, dtype=dtype)

    def ratio(self, *sums: tf.Tensor) -> tf.Tensor:
        """Returns 100 · (1 − NE)."""
        return 100.0 * (1.0 - super().ratio(*sums))


def _cross_entropy(labels: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    """Returns −y log p − (1 − y) log(1 − p), with 0 log 0 = 0."""
    return -tf.math.xlogy(labels, p) - tf.math.xlog1py(1 - labels, -p)
