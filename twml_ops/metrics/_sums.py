"""Metrics that are functions of a few weighted sums, and their standard errors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.metrics._streaming import Examples, VectorMetric, sum_by_group


class SumsMetric(VectorMetric):
    """Base of metrics that are ratios of weighted sums over the examples.

    Next to the sums S_j = Σ w t_j it keeps the second moments M_jk = Σ w² t_j t_k, for the standard
    error of the value f(S). f does not change when all weights are scaled, so by Euler's theorem
    the influences of the examples, Σ_j ∂f/∂S_j · w t_j, add up to 0. The delta method then gives
    the variance gᵀ M g with g = ∂f/∂S: the sandwich estimator (Huber 1967, White 1980), exact in
    the weights, from one pass.

    Args:
        terms: Number of sums without the sum of the weights, which is the last.
        name: Name of the metric.
        dtype: Dtype of the result; None: float32.
    """

    def __init__(self, terms: int, name: str, dtype: Any = None) -> None:
        self._k = terms + 1
        super().__init__(self._k + self._k**2, name=name, dtype=dtype)

    def terms(self, labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Computes what each example adds to each sum, before weighting.

        Args:
            labels: float64 [n].
            predictions: float64 [n].

        Returns:
            float64 [n] for each sum.
        """
        raise NotImplementedError

    def ratio(self, *sums: tf.Tensor) -> tf.Tensor:
        """Computes the metric from the sums.

        Args:
            *sums: float64; the last one is the sum of the weights.

        Returns:
            The metric, float64.
        """
        raise NotImplementedError

    def standard_error(self) -> tf.Tensor:
        """The standard error of `result()`, for independent examples.

        It has the factor n / (n − 1) of a sample variance, with n = (Σ w)² / Σ w² (Kish's effective
        sample size).

        Returns:
            A scalar; NaN if the result is NaN or comes from a single example.
        """
        return tf.cast(self.error(tf.convert_to_tensor(self._tally)), self.dtype)

    def tally(self, examples: Examples, groups: tf.Tensor | None, num_groups: int) -> tf.Tensor:
        """The sums, followed by the moments."""
        labels, predictions, weights = examples
        terms = tf.stack([*self.terms(labels, predictions), tf.ones_like(labels)], axis=1)
        # 0 * NaN is NaN, but examples of weight 0 must be ignored.
        terms = tf.math.multiply_no_nan(terms, weights[:, tf.newaxis])
        moments = terms[:, :, tf.newaxis] * terms[:, tf.newaxis, :]
        rows = tf.concat([terms, tf.reshape(moments, [-1, self._k**2])], axis=1)
        return sum_by_group(rows, groups, num_groups)

    def value(self, tally: tf.Tensor) -> tf.Tensor:
        """The metric of tallies [..., size]."""
        return self.ratio(*tf.unstack(tally[..., : self._k], axis=-1))

    def error(self, tally: tf.Tensor) -> tf.Tensor:
        """Computes the standard errors of tallies.

        Args:
            tally: float64 [..., size].

        Returns:
            float64 [...].
        """
        sums = tally[..., : self._k]
        with tf.GradientTape() as tape:
            tape.watch(sums)
            value = self.ratio(*tf.unstack(sums, axis=-1))
        gradient = tape.gradient(value, sums)
        moments = tf.reshape(tally[..., self._k :], tf.concat([tf.shape(sums), [self._k]], axis=0))
        variance = tf.einsum("...j,...jk,...k->...", gradient, moments, gradient)
        n = sums[..., -1] ** 2 / moments[..., -1, -1]
        # A single example has n = 1, up to rounding.
        defined = tf.math.is_finite(value) & (n > 1 + 1e-9)
        nan = tf.constant(float("nan"), tf.float64)
        return tf.where(defined, tf.sqrt(tf.maximum(variance, 0) * n / (n - 1)), nan)
