"""The optimizers that test_optimizer_config.py and test_optimizers.py run through."""

import numpy as np
import tensorflow as tf

from twml_ops import optimizers

stock = tf.keras.optimizers
Schedule = tf.keras.optimizers.schedules.ExponentialDecay
N, D = 8, 5
FTRL = {
    "learning_rate_power": -0.4,
    "initial_accumulator_value": 0.2,
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.02,
    "l2_shrinkage_regularization_strength": 0.03,
    "beta": 0.1,
}
ADAM = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-5}

# Ours, Keras' (None: it has none), arguments of both.
OPTIMIZERS = {
    "SGD": (optimizers.SGD, stock.SGD, {}),
    "Momentum": (optimizers.Momentum, stock.SGD, {"momentum": 0.8}),
    "Nesterov": (optimizers.Momentum, stock.SGD, {"momentum": 0.8, "nesterov": True}),
    "Adagrad": (
        optimizers.Adagrad,
        stock.Adagrad,
        {"initial_accumulator_value": 0.3, "epsilon": 1e-4},
    ),
    "LazyAdam": (optimizers.LazyAdam, stock.Adam, ADAM),
    "Ftrl": (optimizers.Ftrl, stock.Ftrl, FTRL),
    "RowWiseAdagrad": (optimizers.RowWiseAdagrad, None, {"epsilon": 1e-4}),
}
WITH_STOCK = [name for name, (_, keras, _) in OPTIMIZERS.items() if keras]


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def slots_of(optimizer):
    """The optimizer's variables, but for the step and the learning rate."""
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables  # a list in Keras 2 and 3
    return [v.numpy() for v in variables if len(v.shape) > 0]


def assert_close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
