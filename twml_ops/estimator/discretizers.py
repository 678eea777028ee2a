"""Discretizers adapted in eager mode, in the graphs of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

_STATE = ("_feature_ids", "_boundaries", "_splits")


def adapted(layer: Any) -> Callable[[], Any]:
    """Takes the boundaries out of a discretizer, for graphs to come.

    Args:
        layer: a `PercentileDiscretizer` or `HashingDiscretizer` adapted in eager mode.

    Returns:
        `make()`, to be called in a `model_fn`: a layer with these boundaries, whose variables are
        saved in the estimator's checkpoints.

    Raises:
        ValueError: the layer was not adapted.
    """
    if not layer.adapted:
        raise ValueError(f"{type(layer).__name__} '{layer.name}' is not adapted: call adapt(data)")
    config = layer.get_config()
    state = [v.numpy() for v in layer.state_variables]

    def make() -> Any:
        with tf.Graph().as_default():  # of which nothing is kept but the layer's settings
            made = type(layer).from_config(config)
        for attribute, value in zip(_STATE, state, strict=True):
            name = attribute.removeprefix("_")
            with tf.compat.v1.name_scope(layer.name + "/"), library.on_host():
                variable = tf.Variable(value, trainable=False, shape=[None], name=name)
            setattr(made, attribute, variable)
        return made

    return make
