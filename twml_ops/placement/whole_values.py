"""Whole tables for Keras, where a variable of this process holds a part of the table only."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops._keras import in_stateless_scope
from twml_ops.placement import collectives
from twml_ops.placement.base import Placement, check_whole_shape, placement_of, set_placement


def show_whole(variable: Any, place: Placement) -> None:
    """Registers a placement for a variable, and lets Keras read and write the whole table.

    Keras copies, saves and restores weights and slots by `shape`, `numpy` and `assign` of their
    variables (`get_weights`, `.weights.h5`, `EarlyStopping`, ...), also within other optimizers
    that know nothing of placements. From now on these are those of the whole table or slot. Ops of
    this package use the `tf.Variable` of each replica, which does not change.

    Args:
        variable: A table or a slot, of Keras 3, or in Keras 2 of TensorFlow.
        place: Its placement.
    """
    set_placement(variable, place)
    variable.__class__ = _showing_whole(type(variable))


@functools.cache
def _showing_whole(kind: type[Any]) -> type[Any]:
    """A subclass of a class of variables, whose instances show the whole."""

    class Whole(kind):  # type: ignore[misc, valid-type]
        @property
        def shape(self) -> tf.TensorShape:
            return tf.TensorShape(placement_of(self).whole_shape(self))

        def numpy(self) -> np.ndarray:
            found: np.ndarray = placement_of(self).read(self).numpy()
            return found

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            del copy  # reading is a copy
            return np.asarray(self.numpy(), dtype)

        def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
            if collectives.num_replicas() > 1 or in_stateless_scope():
                return super().assign(value, *args, **kwargs)
            place = placement_of(self)
            value = value if hasattr(value, "shape") else np.asarray(value)
            check_whole_shape(value, place.whole_shape(self), f"the variable {self.name}")
            place.assign(self, value)
            return self

    Whole.__name__ = Whole.__qualname__ = kind.__name__
    return Whole
