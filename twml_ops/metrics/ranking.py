"""ROC-AUC and PR-AUC from a histogram of the scores: a fixed size, mergeable, with bounds."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.metrics import _curves
from twml_ops.metrics._streaming import Examples, VectorMetric, sum_by_group

NUM_BUCKETS = 4096
MAX_LOGIT = 16.0  # beyond lie probabilities below 1.1e-7, or as close to 1


class _BucketedCurveMetric(VectorMetric):
    """Weights of positives and negatives in buckets of equal width in the logit of the score.

    Rare events have their scores near 0, where equal widths in the probability would put them all
    into one bucket. A bucket more counts the NaNs.
    """

    def __init__(self, num_buckets: int, from_logits: bool, name: str, dtype: Any = None) -> None:
        whole = isinstance(num_buckets, int) and not isinstance(num_buckets, bool)
        if not whole or num_buckets < 2:
            raise ValueError(f"num_buckets must be an integer of at least 2, got {num_buckets!r}")
        super().__init__(2 * (num_buckets + 1), name=name, dtype=dtype)
        self.num_buckets = num_buckets
        self.from_logits = from_logits

    def tally(self, examples: Examples, groups: tf.Tensor | None, num_groups: int) -> tf.Tensor:
        """[num_buckets + 1, 2] weights of positives and negatives, flat."""
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
        """int32 [n], ascending with the score; NaNs come last."""
        if not self.from_logits:
            p = tf.clip_by_value(predictions, 0.0, 1.0)
            predictions = tf.math.log(p) - tf.math.log1p(-p)
        place = (predictions + MAX_LOGIT) * (self.num_buckets / (2 * MAX_LOGIT))
        place = tf.clip_by_value(place, 0.0, float(self.num_buckets - 1))
        nan = tf.math.is_nan(predictions)
        place = tf.where(nan, tf.zeros_like(place), place)
        return tf.where(nan, self.num_buckets, tf.cast(place, tf.int32))

    def value(self, tally: tf.Tensor) -> tf.Tensor:
        """The area of tallies [..., size]."""
        return self._unless_nan(tally, self._area(*self._descending(tally)))

    def bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """(low, high): the exact area of what was seen lies between them, but for rounding."""
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
    """How often a positive scores higher than a negative, from `num_buckets` buckets of scores.

    Ties, and pairs within a bucket, count half. `bounds()` encloses the exact area, so what the
    buckets cost is known; `ExactROCAUC` has no such cost but keeps every example. The result is
    NaN where the area is undefined: no positives, no negatives, or a NaN among the predictions.
    Predictions of 0 and 1 are legal, those beyond are taken for them; soft labels count in part
    as either.

    Args:
        num_buckets: of equal width in the logit between −16 and 16, at least 2, default 4096.
        from_logits: predictions are logits.
        name: of the metric.
        dtype: of the result, default float32; the sums are float64.

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

    The step-wise area of scikit-learn's `average_precision_score`, thresholds lying between the
    buckets only. `bounds()` encloses the exact area. The result is NaN where it is undefined: no
    positives (where scikit-learn says 0), or a NaN among the predictions; it is 1 without
    negatives. Predictions of 0 and 1 are legal.

    Args:
        num_buckets: as in `ROCAUC`.
        from_logits: predictions are logits.
        name: of the metric.
        dtype: of the result, default float32; the sums are float64.

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
