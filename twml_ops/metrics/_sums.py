"""A metric that is a function of a few weighted sums, and its standard error."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.metrics._streaming import Examples, VectorMetric, sum_by_group


class SumsMetric(VectorMetric):
    """A ratio of weighted sums over the examples, one of which is the sum of the weights.

    Beside the sums S_j = Σ w t_j it keeps the second moments M_jk = Σ w² t_j t_k, for the standard
    error of the value f(S). f does not change when all weights are scaled, so by Euler's theorem
    the examples' influences Σ_j ∂f/∂S_j · w t_j add up to 0, and the delta method is the quadratic
    form gᵀ M g with g = ∂f/∂S: the sandwich estimator, exact in the weights, from one pass.

    Args:
        terms: how many sums there are beside the weight's, which is the last.
        name: of the metric.
        dtype: of the result, default float32.
    """

    def __init__(self, terms: int, name: str, dtype: Any = None) -> None:
        self._k = terms + 1
        super().__init__(self._k + self._k**2, name=name, dtype=dtype)

    def terms(self, labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """What each sum adds per example, before weighting: float64 [n]."""
        raise NotImplementedError

    def ratio(self, *sums: tf.Tensor) -> tf.Tensor:
        """The metric, float64, of the sums; the last one is that of the weights."""
        raise NotImplementedError

    def standard_error(self) -> tf.Tensor:
        """The standard error of `result()`, a scalar; examples are taken to be independent.

        With the factor n / (n − 1) of a sample variance, n = (Σ w)² / Σ w² (Kish's effective
        sample size). NaN where the result is, and of a single example.
        """
        return tf.cast(self.error(tf.convert_to_tensor(self._tally)), self.dtype)

    def tally(self, examples: Examples, groups: tf.Tensor | None, num_groups: int) -> tf.Tensor:
        """Sums, then moments."""
        labels, predictions, weights = examples
        terms = tf.stack([*self.terms(labels, predictions), tf.ones_like(labels)], axis=1)
        # 0 * nan is nan: an example of weight 0 must not be seen at all.
        terms = tf.math.multiply_no_nan(terms, weights[:, tf.newaxis])
        moments = terms[:, :, tf.newaxis] * terms[:, tf.newaxis, :]
        rows = tf.concat([terms, tf.reshape(moments, [-1, self._k**2])], axis=1)
        return sum_by_group(rows, groups, num_groups)

    def value(self, tally: tf.Tensor) -> tf.Tensor:
        """The metric of tallies [..., size]."""
        return self.ratio(*tf.unstack(tally[..., : self._k], axis=-1))

    def error(self, tally: tf.Tensor) -> tf.Tensor:
        """The standard errors, float64 [...], of tallies [..., size]."""
        sums = tally[..., : self._k]
        with tf.GradientTape() as tape:
            tape.watch(sums)
            value = self.ratio(*tf.unstack(sums, axis=-1))
        gradient = tape.gradient(value, sums)
        moments = tf.reshape(tally[..., self._k :], tf.concat([tf.shape(sums), [self._k]], axis=0))
        variance = tf.einsum("...j,...jk,...k->...", gradient, moments, gradient)
        n = sums[..., -1] ** 2 / moments[..., -1, -1]
        # A single example has n = 1 but for rounding.
        defined = tf.math.is_finite(value) & (n > 1 + 1e-9)
        nan = tf.constant(float("nan"), tf.float64)
        return tf.where(defined, tf.sqrt(tf.maximum(variance, 0) * n / (n - 1)), nan)
