"""Keras optimizers whose sparse updates touch only the rows that have a gradient.

`SparseOptimizer` is the base class and explains the common arguments. `UpdateRule` and its
subclasses in `twml_ops.optimizers.update_rules` say what an optimizer keeps beside each variable.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from twml_ops._research import register_keras_classes
from twml_ops.optimizers.averages import SwapEMAWeights, averaged_weights
from twml_ops.optimizers.composite import CompositeOptimizer
from twml_ops.optimizers.first_order import (
    SGD,
    Adagrad,
    Ftrl,
    LazyAdam,
    Momentum,
    RowWiseAdagrad,
)
from twml_ops.optimizers.loss_scale import LossScaleOptimizer
from twml_ops.optimizers.schedules import LinearScalingWarmup
from twml_ops.optimizers.sparse_optimizer import OptimizerOptions, SparseOptimizer
from twml_ops.optimizers.update_rules import SlotSpec, UpdateRule

__all__ = [
    "SGD",
    "Adagrad",
    "CompositeOptimizer",
    "Ftrl",
    "LazyAdam",
    "LinearScalingWarmup",
    "LossScaleOptimizer",
    "Momentum",
    "OptimizerOptions",
    "RowWiseAdagrad",
    "SlotSpec",
    "SparseOptimizer",
    "SwapEMAWeights",
    "UpdateRule",
    "averaged_weights",
    "get",
]

register_keras_classes()

_BY_NAME: dict[str, Callable[[], SparseOptimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
    "lazy_adam": LazyAdam,
    "ftrl": Ftrl,
}


def get(identifier: Any) -> Any:
    """Returns the optimizer of this package that a name or a config describes.

    Args:
        identifier: the name of a class, as `"LazyAdam"` or `"lazy_adam"`, for its default
            arguments; a dict with `class_name` and `config`, as `tf.keras.optimizers.serialize`
            returns it; or an optimizer, which is returned.

    Returns:
        A Keras optimizer.

    Raises:
        ValueError: the name is that of none of this package's optimizers, or `identifier` is
            anything else.
    """
    if isinstance(identifier, tf.keras.optimizers.Optimizer):
        return identifier
    if isinstance(identifier, dict):
        return tf.keras.optimizers.deserialize(identifier)
    if not isinstance(identifier, str):
        raise ValueError(f"identifier must be a name, a config or an optimizer, got {identifier!r}")
    names = {re.sub("[^a-z]", "", name): name for name in _BY_NAME}
    wanted = re.sub("[^a-z]", "", identifier.lower())
    if wanted in names:
        return _BY_NAME[names[wanted]]()
    meant = difflib.get_close_matches(wanted, names, n=1)
    hint = f"; did you mean {names[meant[0]]!r}?" if meant else ""
    raise ValueError(f"identifier must be one of {', '.join(_BY_NAME)}, got {identifier!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
