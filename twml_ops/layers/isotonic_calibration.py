"""Calibration by a rising curve of any form."""

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
    """Maps each score to how often it comes true: the best fit among all curves that never fall.

    `fit` runs the pool-adjacent-violators algorithm (Ayer et al., 1955; for classifiers Zadrozny
    and Elkan, 2002) of scikit-learn, which only fitting needs, and keeps the corners of the curve.
    Between them the layer interpolates linearly; below the first and above the last corner the
    curve is flat. A higher score never gets a lower probability, not even by rounding.

    Against certainty from a few examples at either end (an event that was not seen among the 50
    lowest scores is not impossible), two pseudo-examples of weight `smoothing` with the base rate
    for a label join the lowest and the highest score. 0 gives exactly scikit-learn's
    `IsotonicRegression`, and infinite losses.

    The state survives `.keras` files, checkpoints and SavedModels, bit for bit. It is padded to
    the longest curve of all units: 8 bytes · units · corners.

    Args:
        units: number of columns, each with a curve of its own.
        smoothing: weight of each pseudo-example, default 1.
        nan: what a NaN score gives: "propagate" (default): NaN; "base_rate": the mean label.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range.
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
        # The last corner, repeated, changes no curve.
        padded = [
            [np.pad(axis, (0, longest - len(axis)), mode="edge") for axis in axes]
            for axes in zip(*curves, strict=True)
        ]
        return [np.stack(axis).astype(np.float32) for axis in padded]

    def _curves(self, scores: tf.Tensor) -> tf.Tensor:
        xs, ys = (v.read_value() for v in self.state_variables[:2])
        scores = tf.clip_by_value(scores, xs[:, :1], xs[:, -1:])  # the infinite ones, too
        above = tf.searchsorted(xs, scores, side="right")  # the first corner beyond
        last = tf.shape(xs)[1] - 1
        low, high = tf.maximum(above - 1, 0), tf.minimum(above, last)
        x0, x1, y0, y1 = (
            tf.gather(axis, corner, batch_dims=1) for axis in (xs, ys) for corner in (low, high)
        )
        rise = tf.math.divide_no_nan(scores - x0, x1 - x0) * (y1 - y0)
        return tf.minimum(y0 + rise, y1)  # rounding must not overtake the next corner

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "smoothing": self.smoothing}


def _pool_adjacent_violators(
    column: Column, smoothing: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The corners of the best rising curve: scores, strictly ascending, and values."""
    try:
        from sklearn.isotonic import IsotonicRegression
    except ImportError as e:
        raise ImportError(
            "IsotonicCalibration.fit needs scikit-learn (the fitted layer does not): "
            'pip install "twml_ops[calibrate]"'
        ) from e
    # As the layer will see them; in float64 scikit-learn keeps apart what float32 does.
    x = column.scores.astype(np.float32).astype(np.float64)
    y, w = column.labels, column.weights
    if smoothing:
        x = np.append(x, [x.min(), x.max()])
        y = np.append(y, [column.base_rate] * 2)
        w = np.append(w, [smoothing] * 2)
    regression = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(x, y, w)
    corners = regression.X_thresholds_.astype(np.float32)
    return corners, regression.y_thresholds_.astype(np.float32)
