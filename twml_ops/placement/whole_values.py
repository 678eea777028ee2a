"""Whole tables for Keras, where a variable of this process holds a part of the table only."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops._keras import KERAS_3, in_stateless_scope
from twml_ops.placement import collectives
from twml_ops.placement.base import Placement, check_whole_shape, placement_of, set_placement

MARK = 0x7477_6D6C_6F70_7331
"""First item of an array that stands for a table, which `written_later` explains."""

_LATER: ContextVar[list[Any] | None] = ContextVar("tables that are written later", default=None)


@contextlib.contextmanager
def written_later() -> Iterator[list[Any]]:
    """In the block, the tables and slots that are in files are not read when Keras saves them.

    In a file of Keras they are arrays (MARK, number), which the caller replaces.

    Yields:
        The list of their variables, by number, to which they are added.
    """
    variables: list[Any] = []
    token = _LATER.set(variables)
    try:
        yield variables
    finally:
        _LATER.reset(token)


def value_in_file(variable: Any) -> np.ndarray:
    """What a file of Keras has for a variable.

    Args:
        variable: A weight or a slot.

    Returns:
        The whole table or slot, or in `written_later` what stands for it. bfloat16 is float32.
    """
    place, later = placement_of(variable), _LATER.get()
    if later is not None and place.in_file:
        later.append(variable)
        return np.array([MARK, len(later) - 1], np.int64)
    found: np.ndarray = place.read(variable).numpy() if place.is_sharded else variable.numpy()
    return found.astype(np.float32) if found.dtype == tf.bfloat16.as_numpy_dtype else found


def assign_whole(variable: Any, value: Any) -> None:
    """Sets a variable to what a file has.

    Args:
        variable: A weight or a slot.
        value: The whole table or slot.
    """
    place = placement_of(variable)
    if place.is_sharded:
        place.assign(variable, value)
    else:
        variable.assign(value)


def show_whole(variable: Any, place: Placement) -> None:
    """Registers a placement for a variable, and lets Keras read and write the whole table.

    Keras copies, saves and restores weights and slots by `shape`, `numpy` and `assign` of their
    variables (`get_weights`, `.weights.h5`, `EarlyStopping`, ...), also within other optimizers
    that do not use placements. From now on these refer to the whole table or slot. Ops of
    this package use the `tf.Variable` of each replica, which does not change. In Keras 2 Keras has
    the variable of the ops itself. That of a table in a file continues to refuse to be read.

    Args:
        variable: A table or a slot, of Keras 3, or in Keras 2 of TensorFlow.
        place: Its placement.
    """
    set_placement(variable, place)
    if KERAS_3 or not place.in_file:
        kind: Any = type(variable)
        variable.__class__ = _showing_whole(kind)


@functools.cache
def _showing_whole(kind: Any) -> Any:
    """A subclass of a class of variables, whose instances show the whole."""

    class Whole(kind):
        @property
        def shape(self) -> tf.TensorShape:
            return tf.TensorShape(placement_of(self).whole_shape(self))

        def numpy(self) -> np.ndarray:
            if _LATER.get() is not None:
                return value_in_file(self)
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
            if not KERAS_3 and tuple(value.shape) == tuple(super().shape):
                return super().assign(value, *args, **kwargs)  # by an update of one replica
            check_whole_shape(value, place.whole_shape(self), f"the variable {self.name}")
            place.assign(self, value)
            return self

    Whole.__name__ = Whole.__qualname__ = kind.__name__
    return Whole
