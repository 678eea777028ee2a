"""A metric for each segment of the examples, such as normalized entropy by user group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.metrics._streaming import Streaming, VectorMetric, flat_examples
from twml_ops.metrics._sums import SumsMetric


@serializable
class Segmented(Streaming):
    """Computes another metric separately for each segment of the examples.

    The segment of an example is a number from 0. It is passed as `segments` to `update_state` or,
    in `fit`, as the second column of the labels:

        ne = metrics.Segmented(metrics.NormalizedEntropy(), ["new users", "old users"])
        model.compile(..., loss=lambda y, p: bce(y[:, :1], p), metrics=[ne])
        model.fit(x, np.stack([label, segment], axis=1))  # logs "normalized_entropy/new users"

    Examples with a segment number out of range are ignored. A segment without examples has the
    value NaN.

    Args:
        metric: The metric to compute: any metric of this package that is not exact, windowed or
            segmented. Its own state is not used.
        segments: Names of the segments, or their number.
        reduce: "none": the result is a dict with the value of each segment, named `NAME/SEGMENT`.
            "mean": the result is the mean over the segments where the metric is defined, weighted
            by the weights of their examples, or NaN if there is none. For `ROCAUC` by user it is
            known as GAUC (Zhu et al. 2017, "Optimized Cost per Click in Taobao Display
            Advertising").
        name: Name; None: that of `metric`.
        dtype: Dtype of the results; None: float32.

    Raises:
        ValueError: `metric` cannot be computed by segment, there are no segments, or names repeat.
    """

    def __init__(
        self,
        metric: VectorMetric,
        segments: int | Sequence[str],
        reduce: Literal["none", "mean"] = "none",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        if not isinstance(metric, VectorMetric):
            raise ValueError(
                "metric must be a metric of this package whose tally is a vector (as "
                f"NormalizedEntropy or ROCAUC does), got {type(metric).__name__}"
            )
        names = list(map(str, range(segments) if isinstance(segments, int) else segments))
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"segments must be a positive number or distinct names, got {segments!r}"
            )
        if reduce not in ("none", "mean"):
            raise ValueError(f"reduce must be 'none' or 'mean', got {reduce!r}")
        # The last column is the weight of each segment, for the mean.
        shape = (len(names), metric.shape[0] + 1)
        super().__init__(shape, name=name or metric.name, dtype=dtype)
        self.segments = tuple(names)
        self.reduce = reduce
        # In a function, so that Keras does not track the metric's variables as this one's.
        self._metric: Callable[[], VectorMetric] = lambda: metric

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, segments: Any = None
    ) -> None:
        """Adds a batch.

        Args:
            y_true: Labels in [0, 1], with as many elements as `y_pred`; without `segments`, [B, 2]:
                label and segment.
            y_pred: Predictions, [B] or [B, 1].
            sample_weight: Scalar, [B] or [B, 1]; default 1.
            segments: Segment of each example, [B] or [B, 1].

        Raises:
            ValueError: There is neither `segments` nor a second column of `y_true`.
        """
        self._tally.assign_add(self.batch_tally(y_true, y_pred, sample_weight, segments))

    def batch_tally(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, segments: Any = None
    ) -> tf.Tensor:
        """What a batch adds to the metric's tally and to the weight, for each segment.

        Args:
            y_true: As for `update_state`.
            y_pred: As for `update_state`.
            sample_weight: As for `update_state`.
            segments: As for `update_state`.

        Returns:
            float64 [segments, size + 1].

        Raises:
            ValueError: There is neither `segments` nor a second column of `y_true`.
        """
        if segments is None:
            y_true = tf.convert_to_tensor(y_true)
            if y_true.shape.rank != 2 or y_true.shape[1] != 2:
                raise ValueError(
                    "y_true must be [B, 2], label and segment, if segments is not given, got "
                    f"{y_true.shape}"
                )
            y_true, segments = y_true[:, 0], y_true[:, 1]
        examples = flat_examples(y_true, y_pred, sample_weight)
        # As float64, since other integers than int32 could become known segments.
        numbers = tf.reshape(tf.cast(segments, tf.float64), [-1])
        known = (numbers >= 0) & (numbers < len(self.segments))
        groups = tf.cast(tf.where(known, numbers, -tf.ones_like(numbers)), tf.int32)
        tally = self._metric().tally(examples, groups, len(self.segments))
        weight = tf.math.unsorted_segment_sum(examples.weights, groups, len(self.segments))
        return tf.concat([tally, weight[:, tf.newaxis]], axis=1)

    def values(self) -> tf.Tensor:
        """The metric of each segment.

        Returns:
            [segments], of the metric's dtype.
        """
        return tf.cast(self._values(tf.convert_to_tensor(self._tally)), self.dtype)

    def standard_errors(self) -> tf.Tensor:
        """The standard error of each segment's value.

        Returns:
            [segments], of the metric's dtype.

        Raises:
            ValueError: The metric has no standard error.
        """
        metric = self._metric()
        if not isinstance(metric, SumsMetric):
            raise ValueError(f"{type(metric).__name__} has no standard error")
        errors = metric.error(tf.convert_to_tensor(self._tally)[:, :-1])
        return tf.cast(errors, self.dtype)

    def _values(self, tally: tf.Tensor) -> tf.Tensor:
        return self._metric().value(tally[:, :-1])

    def result_of(self, tally: tf.Tensor) -> Any:
        """The values of a tally by name, or their mean."""
        values = self._values(tally)
        if self.reduce == "none":
            parts = tf.unstack(tf.cast(values, self.dtype))
            return {f"{self.name}/{s}": v for s, v in zip(self.segments, parts, strict=True)}
        defined = tf.math.is_finite(values)
        weights = tf.where(defined, tally[:, -1], tf.zeros_like(values))
        total = tf.reduce_sum(tf.math.multiply_no_nan(values, weights))
        weight = tf.reduce_sum(weights)
        nan = tf.constant(float("nan"), tf.float64)
        return tf.cast(tf.where(weight > 0, total / weight, nan), self.dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config: dict[str, Any] = super().get_config()
        inner = tf.keras.metrics.serialize(self._metric())
        return {**config, "metric": inner, "segments": self.segments, "reduce": self.reduce}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Segmented:
        """The metric that `get_config` describes."""
        return cls(**{**config, "metric": tf.keras.metrics.deserialize(config["metric"])})
