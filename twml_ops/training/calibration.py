"""A calibration of a trained model on held-out data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from twml_ops import layers
from twml_ops.analysis.scoring import Scores
from twml_ops.training.errors import UserError

METHODS = {"isotonic": layers.IsotonicCalibration, "platt": layers.PlattScaling}


def fit_calibration(
    method: str, scores: Scores, data: str, name: str = "calibration"
) -> layers.IsotonicCalibration | layers.PlattScaling:
    """Fits a calibration layer.

    The result does not depend on the unit of the sample weights. Beside the examples that the layer
    adds, such as the two of `IsotonicCalibration` at the ends, the data count as (Σ w)² / Σ w²
    examples (Kish 1965, "Survey Sampling").

    Args:
        method: one of METHODS.
        scores: labels and predictions to fit on.
        data: name of the data, for error messages.
        name: name of the layer.

    Raises:
        UserError: all labels of examples with a weight are equal.
    """
    weights, labels = scores.weights, scores.labels
    if weights is not None:
        labels = labels[weights > 0]
    if len(np.unique(labels)) < 2:
        only = f"only labels of {labels[0]:g}" if len(labels) else "no examples with a weight"
        raise UserError(f"{data}: has {only}, expected both classes to calibrate with")
    layer = METHODS[method](name=name)
    if weights is not None:
        # Layers add examples of weight 1, so the sum has to be the effective number of examples.
        weights = weights.astype(np.float64)
        weights *= weights.sum() / np.square(weights).sum()
    layer.adapt(scores.predictions, scores.labels, weights)
    return layer


def append_layers(
    model: tf.keras.Model, fitted: Mapping[str, tf.keras.layers.Layer]
) -> tf.keras.Model:
    """A model that applies the layer of each label to the probabilities [B, 1] of `model`."""
    if isinstance(model.output, dict):
        outputs = {label: layer(model.output[label]) for label, layer in fitted.items()}
    else:
        (layer,) = fitted.values()
        outputs = layer(model.output)
    return tf.keras.Model(model.input, outputs, name=model.name)


def check_method(method: str) -> None:
    """Checks the name of a method, and that it can be used.

    Raises:
        UserError: it is unknown, or scikit-learn is missing.
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}: expected one of {', '.join(METHODS)}")
    if method == "isotonic":
        try:
            import sklearn.isotonic  # noqa: F401  (fail before the data are read)
        except ImportError as e:
            raise UserError(
                "--method isotonic needs scikit-learn: pip install "
                '"twml_ops[calibrate]", or use --method platt'
            ) from e
