"""Out-of-fold means of the label by category."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._arguments import check_choice
from twml_ops.layers._category_statistics import CategoryStatistics


@serializable
class TargetStatistics(CategoryStatistics):
    """Replaces each category by a smoothed mean of the label among the rows that have it.

    With n rows of a category, s the sum of their labels, a the `prior_weight` and p the mean label
    of all rows, the statistic is the posterior mean `(s + a p) / (n + a)` (Micci-Barreca, 2001, "A
    preprocessing scheme for high-cardinality categorical attributes"). A category that `adapt` has
    not seen has the prior p.

    In training a row must not see its own label. Rows are divided into folds by a hash of their
    row keys, and a row is given the statistics of the other folds, scaled to the size of all data.
    With `time_boundaries` a row is given the statistics of earlier blocks of time only (the ordered
    statistics of Prokhorenkova et al., 2018, "CatBoost", in blocks); rows of the first block are
    given the mean label of the other blocks. In inference all rows count.

    The state survives `.keras` files, checkpoints and SavedModels, bit for bit. Memory:
    8 + 8 · `num_folds` bytes for each distinct category or cross.

    Args:
        num_fields: number of categorical fields, F.
        crosses: tuples of two or more positions of fields; each tuple of their categories is a
            category of its own. Default: none.
        num_folds: number of folds, at least 2, default 5. Ignored if `time_boundaries` is given.
        time_boundaries: None, or row keys (times) at which the second and later blocks begin.
        prior_weight: the number of rows that the prior counts for, positive, default 20.
        output: "logit" (default): the log-odds of the mean; "mean": the mean.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        num_fields: int,
        crosses: Sequence[Sequence[int]] = (),
        num_folds: int = 5,
        time_boundaries: Sequence[int] | None = None,
        prior_weight: float = 20.0,
        output: Literal["logit", "mean"] = "logit",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_fields, crosses, num_folds, time_boundaries, **kwargs)
        if not 0 < prior_weight < math.inf:
            raise ValueError(f"prior_weight must be positive and finite, got {prior_weight!r}")
        check_choice("output", output, ("logit", "mean"))
        self.prior_weight = float(prior_weight)
        self.output_kind = output

    def _statistics(self, rows: tf.Tensor, used: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
        scale = self._scale(used, totals)
        counts = scale * self._sum(self._counts, rows, used)
        sums = scale * self._sum(self._label_sums, rows, used)
        seen, positive = (tf.linalg.matvec(used, totals[:, c])[:, tf.newaxis] for c in (0, 1))
        prior = (positive + self._guess(used, totals)) / (seen + 1)  # never 0 or 1
        total = counts + self.prior_weight
        if self.output_kind == "mean":
            return (sums + self.prior_weight * prior) / total
        # The odds are taken from two sums, so that means near 1 keep their digits.
        negatives = tf.maximum(counts - sums, 0.0) + self.prior_weight * (1 - prior)
        return tf.math.log((sums + self.prior_weight * prior) / negatives)

    def _guess(self, used: tf.Tensor, totals: tf.Tensor) -> Any:
        """The mean label that counts as one row, [B, 1]: that of the other blocks of time."""
        if self.time_boundaries is None:
            return 0.5  # most rows are seen
        own = tf.cast(tf.reduce_sum(used, axis=1), tf.int32)  # the blocks before it are used
        others = 1 - tf.one_hot(own, self.num_folds)
        rows, positive = (tf.linalg.matvec(others, totals[:, c])[:, tf.newaxis] for c in (0, 1))
        in_inference = own[:, tf.newaxis] == self.num_folds
        return tf.where(in_inference, 0.5, (positive + 0.5) / (rows + 1))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "prior_weight": self.prior_weight,
            "output": self.output_kind,
        }
