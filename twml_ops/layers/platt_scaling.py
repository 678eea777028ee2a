"""Calibration by a sigmoid with two parameters."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops._keras import serializable
from twml_ops.layers._calibration import Calibration, Column, Floats

EPSILON = 1e-7
MAX_STEPS = 100


@serializable
class PlattScaling(Calibration):
    """Maps scores to sigmoid(a · logit + b), with a and b for each unit.

    Platt 1999, "Probabilistic Outputs for Support Vector Machines and Comparisons to Regularized
    Likelihood Methods". `adapt` maximizes the likelihood by Newton's method with backtracking (Lin,
    Lin and Weng 2007, "A Note on Platt's Probabilistic Outputs for Support Vector Machines"). As
    Platt proposes, labels are moved away from 0 and 1 to 1 / (N− + 2) and (N+ + 1) / (N+ + 2),
    where N± are the weights of both classes, so that separable data have a solution too. A few
    hundred examples are enough for two parameters; with tens of thousands, `IsotonicCalibration`
    can fit a curve of any form.

    Args:
        units: Number of columns, each with its own a and b.
        from_logits: Whether scores are logits, or other real numbers. Otherwise they are
            probabilities, whose logit is computed after clipping to [1e-7, 1 − 1e-7].
        nan: Result for a NaN score: "propagate": NaN; "base_rate": the mean label.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range.
    """

    state_names: ClassVar[tuple[str, ...]] = ("slopes", "intercepts", "base_rates")
    state_ranks: ClassVar[tuple[int, ...]] = (1, 1, 1)

    def __init__(
        self,
        units: int = 1,
        from_logits: bool = False,
        nan: Literal["propagate", "base_rate"] = "propagate",
        **kwargs: Any,
    ) -> None:
        super().__init__(units, nan, **kwargs)
        self.from_logits = bool(from_logits)

    def _fit(self, columns: list[Column]) -> list[npt.NDArray[np.float32]]:
        found = []
        for column in columns:
            f = column.scores
            if not self.from_logits:
                p = np.clip(f, EPSILON, 1 - EPSILON)
                f = np.log(p) - np.log1p(-p)
            found.append(_maximum_likelihood(f, column.labels, column.weights))
        return [np.array(part, np.float32) for part in zip(*found, strict=True)]

    def _curves(self, scores: tf.Tensor) -> tf.Tensor:
        slopes, intercepts = (v.read_value()[:, tf.newaxis] for v in self.state_variables[:2])
        if not self.from_logits:
            p = tf.clip_by_value(scores, EPSILON, 1 - EPSILON)
            scores = tf.math.log(p) - tf.math.log1p(-p)
        # 0 · infinity would be NaN, but a slope of 0 gives a constant.
        return tf.sigmoid(tf.math.multiply_no_nan(scores, slopes) + intercepts)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "from_logits": self.from_logits}


def _maximum_likelihood(f: Floats, labels: Floats, weights: Floats) -> tuple[float, float]:
    """The parameters (a, b) of sigmoid(a f + b)."""
    positive = float(np.sum(weights * labels))
    negative = float(np.sum(weights * (1 - labels)))
    high, low = (positive + 1) / (positive + 2), 1 / (negative + 2)
    targets = labels * high + (1 - labels) * low

    # Standardized scores make the Hessian well-conditioned, whatever the unit of the scores.
    middle = float(np.average(f, weights=weights))
    centred = f - middle if np.ptp(f) else np.zeros_like(f)
    spread = float(np.sqrt(np.average(centred**2, weights=weights))) or 1.0
    x = np.stack([centred / spread, np.ones_like(f)], axis=1)

    def loss(at: Floats) -> float:
        z = x @ at
        return float(np.sum(weights * (np.logaddexp(0, z) - targets * z)))

    at = np.array([0.0, np.log((positive + 1) / (negative + 1))])
    value = loss(at)
    for _ in range(MAX_STEPS):
        p = 1 / (1 + np.exp(-(x @ at)))
        gradient = x.T @ (weights * (p - targets))
        hessian = (x * (weights * p * (1 - p))[:, np.newaxis]).T @ x + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        decrement = float(gradient @ step)
        if decrement <= 1e-16 * (1 + value):
            break
        length = 1.0
        while length > 1e-10 and loss(at - length * step) > value - 1e-4 * length * decrement:
            length /= 2
        if length <= 1e-10:
            break  # the loss cannot be reduced further in float64
        at = at - length * step
        value = loss(at)
    slope = float(at[0]) / spread
    return slope, float(at[1]) - slope * middle
