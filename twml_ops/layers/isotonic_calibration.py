"""Calibration by a non-decreasing curve."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._calibration import Calibration, Column


@serializable
class IsotonicCalibration(Calibration):
    """Maps scores to probabilities by the best-fitting non-decreasing curve.

    `adapt` runs the pool-adjacent-violators algorithm (Ayer et al. 1955, "An Empirical Distribution
    Function for Sampling with Incomplete Information"; for classifiers Zadrozny and Elkan 2002,
    "Transforming Classifier Scores into Accurate Multiclass Probability Estimates") of
    scikit-learn, which only fitting needs, and stores the knots of the curve. The layer
    interpolates linearly between them and is constant below the first and above the last. A higher
    score never gets a lower probability, not even by rounding.

    Few examples at either end would otherwise give probabilities of exactly 0 or 1. Therefore two
    pseudo-examples of weight `smoothing`, labeled with the base rate, are added at the lowest and
    the highest score. With 0 the result is that of scikit-learn's `IsotonicRegression`, with
    possibly infinite losses.

    `.keras` files, checkpoints and SavedModels contain the state, bit for bit. It is padded to the
    longest curve of all units and takes 8 bytes · units · knots.

    Args:
        units: Number of columns, each with a curve of its own.
        smoothing: Weight of each pseudo-example; finite and not negative.
        nan: Result for a NaN score: "propagate": NaN; "base_rate": the mean label.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range.
    """

    state_names: ClassVar[tuple[str, ...]] = ("corner_scores", "corner_values", "base_rates")
    state_ranks: ClassVar[tuple[int, ...]] = (2, 2, 1)

    def __init__(
        self,
        units: int = 1,
        smoothing: float = 1.0,
        nan: Literal["propagate", "base_rate"] = "propagate",
        **kwargs: Any,
    ) -> None:
        super().__init__(units, nan, **kwargs)
        if not 0 <= smoothing < math.inf:
            raise ValueError(f"smoothing must be finite and not negative, got {smoothing!r}")
        self.smoothing = float(smoothing)

    def _fit(self, columns: list[Column]) -> list[npt.NDArray[np.float32]]:
        curves = [_pool_adjacent_violators(column, self.smoothing) for column in columns]
        longest = max(len(scores) for scores, _ in curves)
        # Repeating the last knot does not change a curve.
        padded = [
            [np.pad(axis, (0, longest - len(axis)), mode="edge") for axis in axes]
            for axes in zip(*curves, strict=True)
        ]
        return [np.stack(axis).astype(np.float32) for axis in padded]

    def _curves(self, scores: tf.Tensor) -> tf.Tensor:
        xs, ys = (v.read_value() for v in self.state_variables[:2])
        scores = tf.clip_by_value(scores, xs[:, :1], xs[:, -1:])  # also infinite scores
        above = tf.searchsorted(xs, scores, side="right")  # the first knot above
        last = tf.shape(xs)[1] - 1
        low, high = tf.maximum(above - 1, 0), tf.minimum(above, last)
        x0, x1, y0, y1 = (
            tf.gather(axis, knot, batch_dims=1) for axis in (xs, ys) for knot in (low, high)
        )
        rise = tf.math.divide_no_nan(scores - x0, x1 - x0) * (y1 - y0)
        return tf.minimum(y0 + rise, y1)  # rounding must not exceed the next knot

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "smoothing": self.smoothing}


def _pool_adjacent_violators(
    column: Column, smoothing: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The knots of the best-fitting non-decreasing curve: strictly ascending scores, values."""
    try:
        from sklearn.isotonic import IsotonicRegression
    except ImportError as e:
        raise ImportError(
            "IsotonicCalibration.adapt needs scikit-learn (the adapted layer does not): "
            'pip install "twml_ops[calibrate]"'
        ) from e
    # As float32, like in the layer: scikit-learn must not separate scores that are equal there.
    x = column.scores.astype(np.float32).astype(np.float64)
    y, w = column.labels, column.weights
    if smoothing:
        x = np.append(x, [x.min(), x.max()])
        y = np.append(y, [column.base_rate] * 2)
        w = np.append(w, [smoothing] * 2)
    regression = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(x, y, w)
    knots = regression.X_thresholds_.astype(np.float32)
    return knots, regression.y_thresholds_.astype(np.float32)
