"""cc/core/quantile_sketch.h through NumPy, since stock ops could not run the same algorithm.

These functions need Python at run time, so they do not work in a SavedModel. No served model
contains a sketch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from twml_ops import core
from twml_ops.ops.stock import check

_FIELDS = ("config", "feature_ids", "totals", "counters", "runs", "items")
_DTYPES = (tf.float64, tf.int64, tf.float64, tf.int64, tf.int32, tf.float32)
_SHAPES: tuple[list[int | None], ...] = ([4], [None], [None, 7], [None, 4], [None, 2], [None])


def quantile_sketch_update(*arguments: Any, has_weights: bool = False) -> list[tf.Tensor]:
    """The op Twml>QuantileSketchUpdate: the state, ids, values, weights."""

    def update(*arrays: Any) -> list[Any]:
        sketch = _sketch(arrays[:6])
        ids, values, weights = arrays[6:]
        sketch.update(ids, values, *([weights] if has_weights else []))
        return _state(sketch)

    return _call(update, arguments)


def quantile_sketch_merge(*arguments: Any) -> list[tf.Tensor]:
    """The op Twml>QuantileSketchMerge: two states."""

    def merge(*arrays: Any) -> list[Any]:
        sketch = _sketch(arrays[:6])
        sketch.merge(_sketch(arrays[6:]))
        return _state(sketch)

    return _call(merge, arguments)


def quantile_sketch_quantiles(*arguments: Any) -> tf.Tensor:
    """The op Twml>QuantileSketchQuantiles: the state, feature ids, probabilities."""

    def quantiles(*arrays: Any) -> Any:
        return np.asarray(_sketch(arrays[:6]).quantiles(*arrays[6:]), np.float32)

    found = _run(quantiles, arguments, tf.float32)
    return tf.ensure_shape(found, [None, None])


def _call(function: Any, arguments: Any) -> list[tf.Tensor]:
    state = _run(function, arguments, _DTYPES)
    return [tf.ensure_shape(t, shape) for t, shape in zip(state, _SHAPES, strict=True)]


def _run(function: Any, arguments: Any, dtypes: Any) -> Any:
    try:
        return tf.numpy_function(function, arguments, dtypes)
    except ValueError as e:  # in eager mode; graphs raise InvalidArgumentError by themselves
        raise check.invalid_argument(str(e)) from None


def _sketch(arrays: Any) -> core.QuantileSketch:
    return core.QuantileSketch.from_state(dict(zip(_FIELDS, arrays, strict=True)))


def _state(sketch: core.QuantileSketch) -> list[Any]:
    state = sketch.state()
    return [
        np.asarray(state[name], dtype.as_numpy_dtype)
        for name, dtype in zip(_FIELDS, _DTYPES, strict=True)
    ]
