"""Keras optimizers whose sparse updates touch only the rows that have a gradient."""

from twml_ops.optimizers.adagrad import Adagrad, RowWiseAdagrad
from twml_ops.optimizers.composite import CompositeOptimizer
from twml_ops.optimizers.ftrl import Ftrl
from twml_ops.optimizers.lazy_adam import LazyAdam
from twml_ops.optimizers.loss_scale import LossScaleOptimizer
from twml_ops.optimizers.schedules import LinearScalingWarmup
from twml_ops.optimizers.sgd import SGD, Momentum

__all__ = [
    "SGD",
    "Adagrad",
    "CompositeOptimizer",
    "Ftrl",
    "LazyAdam",
    "LinearScalingWarmup",
    "LossScaleOptimizer",
    "Momentum",
    "RowWiseAdagrad",
]
