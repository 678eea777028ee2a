"""A metric that is a function of a few weighted sums, so streams merge by adding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


class SumsMetric(tf.keras.metrics.Metric):
    """Keeps named float64 sums; a subclass says what is summed and what is made of the sums.

    float64 because a float32 sum stops growing near 2^24 ≈ 17 M examples. Keras adds the sums of
    the replicas of a distribution strategy (`aggregation=SUM`), `merge_state` those of any others.

    Args:
        sums: names of the sums; each becomes a scalar float64 variable `self.<name>`.
        name: of the metric.
        dtype: of the result, default float32.
    """

    def __init__(self, sums: tuple[str, ...], name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._sums = tuple(
            self.add_weight(name=s, shape=(), initializer="zeros", dtype="float64") for s in sums
        )

    def terms(self, labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """What each sum adds per example, before weighting: float64, shaped as `predictions`."""
        raise NotImplementedError

    def value(self, *sums: tf.Tensor) -> tf.Tensor:
        """The metric, float64, of the sums."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: labels in [0, 1], of as many elements as `y_pred`.
            y_pred: predictions, [B] or [B, 1] (any shape).
            sample_weight: scalar, or shaped as the leading dimensions of `y_pred`; default 1.
        """
        predictions = tf.cast(tf.convert_to_tensor(y_pred), tf.float64)
        labels = tf.reshape(tf.cast(y_true, tf.float64), tf.shape(predictions))
        terms = self.terms(labels, predictions)
        if sample_weight is not None:
            weights = _align(tf.cast(sample_weight, tf.float64), predictions)
            # 0 * nan is nan: an example of weight 0 must not be seen at all.
            terms = tuple(tf.math.multiply_no_nan(term, weights) for term in terms)
        for total, term in zip(self._sums, terms, strict=True):
            total.assign_add(tf.reduce_sum(term))

    def merge_state(self, metrics: Iterable[SumsMetric]) -> None:
        """Adds what other metrics of this kind have seen, as if all had been one stream.

        Raises:
            ValueError: a metric is of another class or configured differently.
        """
        metrics = list(metrics)
        for other in metrics:
            if type(other) is not type(self) or self._settings() != other._settings():
                raise ValueError(
                    f"metrics must all be {type(self).__name__} with {self._settings()}, "
                    f"got {type(other).__name__}"
                    + (f" with {other._settings()}" if isinstance(other, SumsMetric) else "")
                )
        for other in metrics:
            for total, theirs in zip(self._sums, other._sums, strict=True):
                total.assign_add(tf.convert_to_tensor(theirs))

    def result(self) -> tf.Tensor:
        """The metric of everything seen since the last reset, a scalar."""
        value = self.value(*(tf.convert_to_tensor(total) for total in self._sums))
        return tf.cast(value, self.dtype)

    def _settings(self) -> dict[str, Any]:
        config: dict[str, Any] = self.get_config()
        return {k: v for k, v in config.items() if k not in ("name", "dtype")}


def _align(weights: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """`weights` broadcast to `predictions`: [B] with [B, 1] must not become [B, B]."""
    if weights.shape.rank is not None and predictions.shape.rank is not None:
        for _ in range(predictions.shape.rank - weights.shape.rank):
            weights = tf.expand_dims(weights, -1) if weights.shape.rank else weights
        for _ in range(weights.shape.rank - predictions.shape.rank):
            weights = tf.squeeze(weights, -1)
    return tf.broadcast_to(weights, tf.shape(predictions))
