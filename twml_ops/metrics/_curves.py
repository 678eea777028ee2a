"""Areas under the ROC and the precision-recall curve, from weights by descending score.

`positives` and `negatives` are float64 [..., T]: the weights of both labels at each of T distinct
scores, or in each of T score buckets, starting with the highest score.
"""

from __future__ import annotations

import tensorflow as tf

NAN = float("nan")


def roc_auc(positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
    """The share of (positive, negative) pairs in the right order, where ties count half.

    It is NaN if there are no pairs.
    """
    above = tf.cumsum(positives, axis=-1, exclusive=True)
    return _per_pair(negatives * (above + positives / 2), positives, negatives)


def roc_auc_bounds(positives: tf.Tensor, negatives: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The smallest and the largest area for any order within each bucket."""
    above = tf.cumsum(positives, axis=-1, exclusive=True)
    low = _per_pair(negatives * above, positives, negatives)
    return low, _per_pair(negatives * (above + positives), positives, negatives)


def _per_pair(ordered: tf.Tensor, positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
    pairs = tf.reduce_sum(positives, axis=-1) * tf.reduce_sum(negatives, axis=-1)
    return _ratio(tf.reduce_sum(ordered, axis=-1), pairs)


def average_precision(positives: tf.Tensor, negatives: tf.Tensor) -> tf.Tensor:
    """Σ (recall_t − recall_t−1) · precision_t; NaN without positives, 1 without negatives."""
    hits, misses = tf.cumsum(positives, axis=-1), tf.cumsum(negatives, axis=-1)
    return _per_positive(positives * tf.math.divide_no_nan(hits, hits + misses), positives)


def average_precision_bounds(
    positives: tf.Tensor, negatives: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Bounds of the area for any order within each bucket.

    Let h positives and m negatives be above a bucket with p positives and n negatives. No threshold
    in the bucket has a precision above (h + p) / (h + p + m). The threshold that includes the t-th
    of the p positives has a precision of at least (h + t) / (h + t + m + n); the sum over t is
    bounded by its integral.
    """
    hits = tf.cumsum(positives, axis=-1, exclusive=True)
    misses = tf.cumsum(negatives, axis=-1, exclusive=True)
    high = tf.math.divide_no_nan(hits + positives, hits + positives + misses)
    below = misses + negatives
    growth = tf.math.divide_no_nan(positives, hits + below)
    lost = tf.where(below > 0, below * tf.math.log1p(growth), tf.zeros_like(below))
    # hits + below is 0 only if the bucket has no negatives either, and then nothing is lost.
    return _per_positive(positives - lost, positives), _per_positive(positives * high, positives)


def _per_positive(gained: tf.Tensor, positives: tf.Tensor) -> tf.Tensor:
    return _ratio(tf.reduce_sum(gained, axis=-1), tf.reduce_sum(positives, axis=-1))


def _ratio(total: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
    return tf.where(of > 0, total / of, tf.constant(NAN, of.dtype))
