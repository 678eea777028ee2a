"""A feature that says how often a category occurs."""

from __future__ import annotations

from typing import ClassVar

import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._category_statistics import CategoryStatistics


@serializable
class CountStatistics(CategoryStatistics):
    """Replaces each category by `log(1 + n)`, n being the number of rows that have it.

    In training n is the number among the other folds, times rows / rows of the other folds. Without
    this factor, n would be (K - 1) / K of its value in inference. The division into folds, or with
    `time_boundaries` into blocks of time, is that of `TargetStatistics`. For a category
    that `adapt` has not seen the result is 0. A row of weight w counts as w rows.

    The state survives `.keras` files, checkpoints and SavedModels, bit for bit. Memory:
    8 + 4 · `num_folds` bytes for each distinct category or cross.

    Args:
        num_fields: number of categorical fields, F.
        crosses: tuples of two or more positions of fields; each tuple of their categories is a
            category of its own. Default: none.
        num_folds: number of folds, at least 2, default 5. Ignored if `time_boundaries` is given.
        time_boundaries: None, or row keys (times) at which the second and later blocks begin.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range.
    """

    state_names: ClassVar[tuple[str, ...]] = ("keys", "counts", "totals")

    def _statistics(self, rows: tf.Tensor, used: tf.Tensor, totals: tf.Tensor) -> tf.Tensor:
        scale = self._scale(used, totals)
        return tf.math.log1p(scale * self._sum(self._counts, rows, used))
