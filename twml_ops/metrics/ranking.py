"""ROC-AUC and PR-AUC from a histogram of the scores: of fixed size, mergeable, with bounds."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.metrics import _curves
from twml_ops.metrics._streaming import Examples, VectorMetric, sum_by_group

NUM_BUCKETS = 4096
MAX_LOGIT = 16.0  # probabilities of 1.1e-7 and 1 - 1.1e-7


class _BucketedCurveMetric(VectorMetric):
    """Base of metrics that keep the weights of both classes in buckets of equal width in the logit.

    The scores of rare events are near 0, where buckets of equal width in the probability would not
    separate them. One more bucket counts NaNs.
    """

    def __init__(self, num_buckets: int, from_logits: bool, name: str, dtype: Any = None) -> None:
        whole = isinstance(num_buckets, int) and not isinstance(num_buckets, bool)
        if not whole or num_buckets < 2:
            raise ValueError(f"num_buckets must be an integer of at least 2, got {num_buckets!r}")
        super().__init__(2 * (num_buckets + 1), name=name, dtype=dtype)
        self.num_buckets = num_buckets
        self.from_logits = from_logits

    def tally(self, examples: Examples, groups: tf.Tensor | None, num_groups: int) -> tf.Tensor:
        """Weights of positives and negatives, [num_buckets + 1, 2] flattened."""
        labels, predictions, weights = examples
        halves = tf.stack([labels, 1 - labels], axis=1)
        halves = tf.math.multiply_no_nan(halves, weights[:, tf.newaxis])
        buckets = self._buckets(predictions)
        if groups is not None:
            cell = groups * (self.num_buckets + 1) + buckets
            buckets = tf.where(groups >= 0, cell, -tf.ones_like(cell))
        cells = sum_by_group(halves, buckets, num_groups * (self.num_buckets + 1))
        return tf.reshape(cells, [num_groups, 2 * (self.num_buckets + 1)])

    def _buckets(self, predictions: tf.Tensor) -> tf.Tensor:
        """Bucket numbers, int32 [n], ascending with the score; the last bucket is that of NaNs."""
        if not self.from_logits:
            p = tf.clip_by_value(predictions, 0.0, 1.0)
            predictions = tf.math.log(p) - tf.math.log1p(-p)
        place = (predictions + MAX_LOGIT) * (self.num_buckets / (2 * MAX_LOGIT))
        place = tf.clip_by_value(place, 0.0, float(self.num_buckets - 1))
        nan = tf.math.is_nan(predictions)
        place = tf.where(nan, tf.zeros_like(place), place)
        return tf.where(nan, self.num_buckets, tf.cast(place, tf.int32))

    def value(self, tally: tf.Tensor) -> tf.Tensor:
        """The areas of tallies [..., size]."""
        return self._unless_nan(tally, self._area(*self._descending(tally)))

    def bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Bounds of the exact area of all examples since the last reset.

        Returns:
            `(low, high)`, scalars. The exact area lies between them, up to rounding.
        """
        tally = tf.convert_to_tensor(self._tally)
        pair = self._area_bounds(*self._descending(tally))
        low, high = (tf.cast(self._unless_nan(tally, x), self.dtype) for x in pair)
        return low, high

    def _descending(self, tally: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pairs = tf.concat([tf.shape(tally)[:-1], [self.num_buckets + 1, 2]], axis=0)
        cells = tf.reverse(tf.reshape(tally, pairs)[..., :-1, :], axis=[-2])
        return cells[..., 0], cells[..., 1]

    def _unless_nan(self, tally: tf.Tensor, area: tf.Tensor) -> tf.Tensor:
        nan = tf.constant(_curves.NAN, tf.float64)
        return tf.where(tf.reduce_sum(tally[..., -2:], axis=-1) > 0, nan, area)

    def _area(self, positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def _area_bounds(self, positives: tf.Tensor, negatives: tf.Tensor) -> tuple[Any, Any]:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config: dict[str, Any] = super().get_config()
        return {**config, "num_buckets": self.num_buckets, "from_logits": self.from_logits}


@serializable
class ROCAUC(_BucketedCurveMetric):
    """The area under the ROC curve, computed from `num_buckets` buckets of scores.

    It is the probability that a positive example has a higher score than a negative one, where ties
    and pairs within a bucket count half. `bounds()` encloses the exact area, so the error from the
    buckets is known; `ExactROCAUC` has none, but stores every example. The result is NaN if the
    area is undefined: without positives or negatives, or with a NaN among the predictions.
    Predictions of 0 and 1 are allowed, and those beyond are clipped to them. A label between 0 and
    1 counts in part as either class.

    Args:
        num_buckets: Number of buckets of equal width in the logit between −16 and 16, at least 2.
        from_logits: Whether predictions are logits.
        name: Name of the metric.
        dtype: Dtype of the result; None: float32. The sums are float64.

    Raises:
        ValueError: `num_buckets` is less than 2.
    """

    def __init__(
        self,
        num_buckets: int = NUM_BUCKETS,
        from_logits: bool = False,
        name: str = "roc_auc",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_buckets, from_logits, name, dtype)

    def _area(self, positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
        return _curves.roc_auc(positives, negatives)

    def _area_bounds(self, positives: tf.Tensor, negatives: tf.Tensor) -> tuple[Any, Any]:
        return _curves.roc_auc_bounds(positives, negatives)


@serializable
class PRAUC(_BucketedCurveMetric):
    """Average precision, Σ (recall_t − recall_t−1) · precision_t, from buckets of scores.

    It is the step-wise area of scikit-learn's `average_precision_score`, with thresholds between
    the buckets only. `bounds()` encloses the exact area. The result is NaN without positives (where
    scikit-learn returns 0) and with a NaN among the predictions, and 1 without negatives.
    Predictions of 0 and 1 are allowed.

    Args:
        num_buckets: Number of buckets of equal width in the logit between −16 and 16, at least 2.
        from_logits: Whether predictions are logits.
        name: Name of the metric.
        dtype: Dtype of the result; None: float32. The sums are float64.

    Raises:
        ValueError: `num_buckets` is less than 2.
    """

    def __init__(
        self,
        num_buckets: int = NUM_BUCKETS,
        from_logits: bool = False,
        name: str = "pr_auc",
        dtype: Any = None,
    ) -> None:
        super().__init__(num_buckets, from_logits, name, dtype)

    def _area(self, positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
        return _curves.average_precision(positives, negatives)

    def _area_bounds(self, positives: tf.Tensor, negatives: tf.Tensor) -> tuple[Any, Any]:
        return _curves.average_precision_bounds(positives, negatives)
