"""Discretizers that were adapted in eager mode, in the graphs of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

_STATE = ("_feature_ids", "_boundaries", "_splits")


def discretizer_factory(layer: Any) -> Callable[[], Any]:
    """A function that makes a copy of an adapted discretizer in the current graph.

    Args:
        layer: a `PercentileDiscretizer` or `HashingDiscretizer` that was adapted in eager mode.

    Returns:
        A function without arguments, to be called in a `model_fn`. It returns a layer with the same
        boundaries, in variables that are saved in the estimator's checkpoints.

    Raises:
        ValueError: the layer is not adapted.
    """
    if not layer.adapted:
        raise ValueError(f"{type(layer).__name__} '{layer.name}' is not adapted: call adapt(data)")
    config = layer.get_config()
    state = [v.numpy() for v in layer.state_variables]

    def make() -> Any:
        with tf.Graph().as_default():  # The variables of this graph are replaced below.
            copy = type(layer).from_config(config)
        for attribute, value in zip(_STATE, state, strict=True):
            name = attribute.removeprefix("_")
            with tf.compat.v1.name_scope(layer.name + "/"), library.on_host():
                variable = tf.Variable(value, trainable=False, shape=[None], name=name)
            setattr(copy, attribute, variable)
        return copy

    return make
