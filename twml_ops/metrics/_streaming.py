"""A metric that is a function of a tally, so streams merge by adding their tallies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf


class Examples(NamedTuple):
    """A batch, flat and float64.

    Attributes:
        labels: [n], in [0, 1].
        predictions: [n].
        weights: [n].
    """

    labels: tf.Tensor
    predictions: tf.Tensor
    weights: tf.Tensor


class Streaming(tf.keras.metrics.Metric):
    """Keeps one float64 tensor, the tally; a subclass says what is added and what it means.

    float64 because a float32 sum stops growing near 2^24 ≈ 17 M examples. Keras adds the tallies of
    the replicas of a distribution strategy (`aggregation=SUM`), `merge_state` those of any others.

    Args:
        shape: of the tally.
        name: of the metric.
        dtype: of the result, default float32.
    """

    def __init__(self, shape: tuple[int, ...], name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.shape = shape
        self._tally = self.add_weight(
            name="tally", shape=shape, initializer="zeros", dtype="float64"
        )

    def batch_tally(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """What a batch adds to the tally, of its shape. Arguments as in `update_state`."""
        raise NotImplementedError

    def result_of(self, tally: tf.Tensor) -> Any:
        """The metric of a tally: a scalar, or a dict of scalars."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: labels in [0, 1], of as many elements as `y_pred`.
            y_pred: predictions, [B] or [B, 1] (any shape).
            sample_weight: scalar, or shaped as the leading dimensions of `y_pred`; default 1. An
                example of weight 0 is not seen at all, not even a NaN in it.
        """
        self._tally.assign_add(self.batch_tally(y_true, y_pred, sample_weight))

    def result(self) -> Any:
        """The metric of everything seen since the last reset."""
        return self.result_of(tf.convert_to_tensor(self._tally))

    def reset_state(self) -> None:
        """Forgets everything seen."""
        self._tally.assign(tf.zeros(self.shape, tf.float64))

    def merge_state(self, metrics: Iterable[Streaming]) -> None:
        """Adds what other metrics of this kind have seen, as if all had been one stream.

        Raises:
            ValueError: a metric is of another class or configured differently.
        """
        metrics = list(metrics)
        for other in metrics:
            check_mergeable(self, other)
        for other in metrics:
            self._tally.assign_add(tf.convert_to_tensor(other._tally))

    def settings(self) -> dict[str, Any]:
        """The arguments that a metric to merge with must share."""
        config: dict[str, Any] = self.get_config()
        return {k: v for k, v in config.items() if k not in ("name", "dtype")}


class VectorMetric(Streaming):
    """A metric whose tally is a vector; it can also be kept per group of examples.

    Args:
        size: of the vector.
        name: of the metric.
        dtype: of the result, default float32.
    """

    def __init__(self, size: int, name: str, dtype: Any = None) -> None:
        super().__init__((size,), name, dtype)

    def tally(self, examples: Examples, groups: tf.Tensor | None, num_groups: int) -> tf.Tensor:
        """The tallies of the groups of examples, float64 [num_groups, size].

        Args:
            examples: n of them.
            groups: int32 [n], an example of a negative group is in none; None: all are in one.
            num_groups: how many there are.
        """
        raise NotImplementedError

    def value(self, tally: tf.Tensor) -> tf.Tensor:
        """The metric, float64 [...], of tallies [..., size]."""
        raise NotImplementedError

    def batch_tally(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """See `Streaming`."""
        return self.tally(flat_examples(y_true, y_pred, sample_weight), None, 1)[0]

    def result_of(self, tally: tf.Tensor) -> tf.Tensor:
        """The metric of a tally, a scalar."""
        return tf.cast(self.value(tally), self.dtype)


def flat_examples(y_true: Any, y_pred: Any, sample_weight: Any) -> Examples:
    """The arguments of `update_state` as they are summed."""
    predictions = tf.cast(tf.convert_to_tensor(y_pred), tf.float64)
    labels = tf.reshape(tf.cast(y_true, tf.float64), [-1])
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
    """Refuses to add up what means different things.

    Args:
        mine: a metric with `settings`.
        other: what is to be merged into it.

    Raises:
        ValueError: they are not of one class with the same settings.
    """
    if type(other) is not type(mine) or mine.settings() != other.settings():
        raise ValueError(
            f"metrics must all be {type(mine).__name__} with {mine.settings()}, "
            f"got {type(other).__name__}"
            + (f" with {other.settings()}" if hasattr(other, "settings") else "")
        )


def _align(weights: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """`weights` broadcast to `predictions`: [B] with [B, 1] must not become [B, B]."""
    if weights.shape.rank is not None and predictions.shape.rank is not None:
        for _ in range(predictions.shape.rank - weights.shape.rank):
            weights = tf.expand_dims(weights, -1) if weights.shape.rank else weights
        for _ in range(weights.shape.rank - predictions.shape.rank):
            weights = tf.squeeze(weights, -1)
    return tf.broadcast_to(weights, tf.shape(predictions))
