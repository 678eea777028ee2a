"""Keras optimizers whose sparse updates touch only the rows that have a gradient.

`SparseOptimizer` is the base class and explains the common arguments. `UpdateRule` and its
subclasses in `twml_ops.optimizers.update_rules` say what an optimizer keeps beside each variable.
"""

from twml_ops.optimizers.adagrad import Adagrad, RowWiseAdagrad
from twml_ops.optimizers.averages import SwapEMAWeights, averaged_weights
from twml_ops.optimizers.composite import CompositeOptimizer
from twml_ops.optimizers.ftrl import Ftrl
from twml_ops.optimizers.lazy_adam import LazyAdam
from twml_ops.optimizers.loss_scale import LossScaleOptimizer
from twml_ops.optimizers.schedules import LinearScalingWarmup
from twml_ops.optimizers.sgd import SGD, Momentum
from twml_ops.optimizers.shampoo import Shampoo
from twml_ops.optimizers.sparse_optimizer import SparseOptimizer
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
    "RowWiseAdagrad",
    "Shampoo",
    "SlotSpec",
    "SparseOptimizer",
    "SwapEMAWeights",
    "UpdateRule",
    "averaged_weights",
]
