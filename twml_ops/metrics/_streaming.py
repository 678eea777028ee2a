"""The base of metrics that are functions of a tally, which merge by adding their tallies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf


class Examples(NamedTuple):
    """A flat batch in float64.

    Attributes:
        labels: [n], in [0, 1].
        predictions: [n].
        weights: [n].
    """

    labels: tf.Tensor
    predictions: tf.Tensor
    weights: tf.Tensor


class Streaming(tf.keras.metrics.Metric):
    """Base of metrics with one float64 tensor as their state, the tally.

    A subclass defines what a batch adds to the tally, and the metric of a tally. The tally is
    float64 since a float32 sum stops growing near 2^24 ≈ 17 M examples. Keras adds the tallies of
    the replicas of a distribution strategy (`aggregation=SUM`); `merge_state` adds the tallies of
    other metrics.

    Args:
        shape: Shape of the tally.
        name: Name of the metric.
        dtype: Dtype of the result; None: float32.
    """

    def __init__(self, shape: tuple[int, ...], name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.shape = shape
        self._tally = self.add_weight(
            name="tally", shape=shape, initializer="zeros", dtype="float64"
        )

    def batch_tally(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """What a batch adds to the tally.

        Args:
            y_true: As for `update_state`.
            y_pred: As for `update_state`.
            sample_weight: As for `update_state`.

        Returns:
            float64, of the shape of the tally.
        """
        raise NotImplementedError

    def result_of(self, tally: tf.Tensor) -> Any:
        """Computes the metric of a tally.

        Args:
            tally: float64, of the shape of the tally.

        Returns:
            A scalar, or a dict of scalars.
        """
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: Labels in [0, 1], with as many elements as `y_pred`.
            y_pred: Predictions, [B], [B, 1] or any other shape.
            sample_weight: Scalar, or of the shape of the leading dimensions of `y_pred`; default 1.
                Examples of weight 0 are ignored, even if they are NaN.
        """
        self._tally.assign_add(self.batch_tally(y_true, y_pred, sample_weight))

    def result(self) -> Any:
        """The metric of all examples since the last reset."""
        return self.result_of(tf.convert_to_tensor(self._tally))

    def reset_state(self) -> None:
        """Resets the tally to 0."""
        self._tally.assign(tf.zeros(self.shape, tf.float64))

    def merge_state(self, metrics: Iterable[Streaming]) -> None:
        """Adds the tallies of other metrics, as if all examples had been in one stream.

        Args:
            metrics: Metrics of the same class with the same settings.

        Raises:
            ValueError: A metric has another class or other settings.
        """
        metrics = list(metrics)
        for other in metrics:
            check_mergeable(self, other)
        for other in metrics:
            self._tally.assign_add(tf.convert_to_tensor(other._tally))

    def settings(self) -> dict[str, Any]:
        """The arguments that metrics must share to be merged.

        Returns:
            The config without name and dtype.
        """
        config: dict[str, Any] = self.get_config()
        return {k: v for k, v in config.items() if k not in ("name", "dtype")}


class VectorMetric(Streaming):
    """Base of metrics whose tally is a vector, which can also be computed by group of examples.

    Args:
        size: Length of the vector.
        name: Name of the metric.
        dtype: Dtype of the result; None: float32.
    """

    def __init__(self, size: int, name: str, dtype: Any = None) -> None:
        super().__init__((size,), name, dtype)

    def tally(self, examples: Examples, groups: tf.Tensor | None, num_groups: int) -> tf.Tensor:
        """Computes the tallies of groups of examples.

        Args:
            examples: n examples.
            groups: int32 [n], group numbers; examples with a negative number are ignored. None: all
                examples are in one group.
            num_groups: Number of groups.

        Returns:
            float64 [num_groups, size].
        """
        raise NotImplementedError

    def value(self, tally: tf.Tensor) -> tf.Tensor:
        """Computes the metric of tallies.

        Args:
            tally: float64 [..., size].

        Returns:
            float64 [...].
        """
        raise NotImplementedError

    def batch_tally(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """The tally of all examples of a batch."""
        return self.tally(flat_examples(y_true, y_pred, sample_weight), None, 1)[0]

    def result_of(self, tally: tf.Tensor) -> tf.Tensor:
        """Computes the metric of a tally, a scalar."""
        return tf.cast(self.value(tally), self.dtype)


def flat_examples(y_true: Any, y_pred: Any, sample_weight: Any) -> Examples:
    """Converts the arguments of `update_state` to flat float64 tensors."""
    predictions = tf.cast(tf.convert_to_tensor(y_pred), tf.float64)
    # Not [-1], since a single label would be broadcast to all predictions.
    labels = tf.reshape(tf.cast(y_true, tf.float64), [tf.size(predictions)])
    if sample_weight is None:
        weights = tf.ones_like(predictions)
    else:
        weights = _align(tf.cast(sample_weight, tf.float64), predictions)
    return Examples(labels, tf.reshape(predictions, [-1]), tf.reshape(weights, [-1]))


def sum_by_group(rows: tf.Tensor, groups: tf.Tensor | None, num_groups: int) -> tf.Tensor:
    """The sums of rows [n, k] by group, [num_groups, k]; see `VectorMetric.tally`."""
    if groups is None:
        return tf.reduce_sum(rows, axis=0, keepdims=True)
    return tf.math.unsorted_segment_sum(rows, groups, num_groups)


def check_mergeable(mine: Any, other: Any) -> None:
    """Raises if two metrics cannot be merged.

    Args:
        mine: A metric with `settings`.
        other: What is to be merged into it.

    Raises:
        ValueError: They differ in class or settings.
    """
    if type(other) is not type(mine) or mine.settings() != other.settings():
        raise ValueError(
            f"metrics must all be {type(mine).__name__} with {mine.settings()}, "
            f"got {type(other).__name__}"
            + (f" with {other.settings()}" if hasattr(other, "settings") else "")
        )


def _align(weights: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Broadcasts `weights` to `predictions`; [B] and [B, 1] are not broadcast to [B, B]."""
    if weights.shape.rank is not None and predictions.shape.rank is not None:
        for _ in range(predictions.shape.rank - weights.shape.rank):
            weights = tf.expand_dims(weights, -1) if weights.shape.rank else weights
        for _ in range(weights.shape.rank - predictions.shape.rank):
            weights = tf.squeeze(weights, -1)
    return tf.broadcast_to(weights, tf.shape(predictions))
