"""A copy of the weights of a model, to which it may return."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from twml_ops import placement


def copy_of(model: tf.keras.Model) -> list[np.ndarray]:
    """The weights of a model. Weights of tables whose rows are in files are in a file as well.

    That file is beside the files of the tables, has no name, and is removed with the array.

    Args:
        model: a model that is built.

    Returns:
        An array for each weight.
    """
    return [_copy(variable) for variable in model.weights]


def give_back(model: tf.keras.Model, weights: Sequence[np.ndarray]) -> None:
    """Sets the weights of a model.

    Args:
        model: the model.
        weights: what `copy_of` has returned.
    """
    for variable, value in zip(model.weights, weights, strict=True):
        placement.placement_of(variable).assign(variable, value)


def _copy(variable: tf.Variable) -> np.ndarray:
    place = placement.placement_of(variable)
    if not isinstance(place, placement.TieredPlacement):
        return np.array(place.read(variable))
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    with tempfile.TemporaryFile(dir=Path(place.storage.path)) as file:
        rows = np.memmap(file, dtype, "w+", shape=place.shape)
    begin = 0
    for piece in place.pieces(variable):
        rows[begin : begin + len(piece)] = piece.numpy()
        begin += len(piece)
    return rows
