"""Tests of states of layers of asynchronous workers, run by test_one_process.py in a child."""

from functools import partial

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.model import ROWS, model_with_states, whole_batches
from tests.distribute.parameter_server.trainers import (
    Stop,
    asynchronous_workers,
    child_test,
    step_with,
)
from twml_ops import layers, optimizers


def build(stops):
    model = model_with_states()
    return tf.keras.Model(model.inputs, Stop(name="stop")(model.output)) if stops else model


def states_of(hybrid):
    """The largest values, the moments, the moving mean and the moving variance."""
    model = hybrid.export()
    found = {type(layer): layer for layer in model.layers}
    moving = found[tf.keras.layers.BatchNormalization]
    states = [found[layers.MaxNorm].state, found[layers.OnlineStandardize].state]
    return [np.asarray(s) for s in (*states, moving.moving_mean, moving.moving_variance)]


def check(hybrid, seen, mean, variance):
    """Checks the states after batches; `mean` and `variance` are what the moving ones should be."""
    largest, moments = np.zeros(ROWS, "f"), [[] for _ in range(ROWS)]
    for (ids, values), _ in seen:
        np.maximum.at(largest, ids.numpy(), np.abs(values.numpy()))
        for i, v in zip(ids.flat_values.numpy(), values.flat_values.numpy(), strict=True):
            moments[i].append(v)
    counted = [(len(v), np.mean(v or [0.0]), np.var(v or [0.0]) * len(v)) for v in moments]
    got = states_of(hybrid)
    np.testing.assert_array_equal(got[0], largest)
    np.testing.assert_allclose(got[1], counted, 1e-6, 1e-7)
    np.testing.assert_allclose(got[2:], [mean, variance], 1e-5)


def moving(batches, mean, variance):
    """The moving mean and variance after batches, from those before."""
    for (_, values), _ in batches:
        sums = values.numpy().sum(axis=1)
        mean, variance = 0.9 * mean + 0.1 * sums.mean(), 0.9 * variance + 0.1 * sums.var()
    return mean, variance


@child_test
def states_of_layers_learn_from_the_batches_of_all_asynchronous_workers():
    """A change is added to the state that another worker has changed meanwhile."""
    batches = whole_batches()
    models = [partial(build, True), partial(build, False)]
    first, second = asynchronous_workers(models, partial(optimizers.SGD, 0.1), batches[0])
    step_with(second, batches[0])
    stop = first.model.get_layer("stop")
    late = stop.step_until_there(first, batches[1])
    step_with(second, batches[2])
    stop.go.enqueue(0.0)
    late.join()
    before = moving(batches[:1], np.zeros(1), np.ones(1))
    found = [moving(batches[i : i + 1], *before) for i in (1, 2)]
    check(first, batches[:3], *(x + sum(f[i] - x for f in found) for i, x in enumerate(before)))


@child_test
def states_of_layers_learn_from_all_batches_of_an_exchange_and_other_weights_are_not_sent_back():
    batches = whole_batches()[:2]
    make, models = partial(optimizers.SGD, 0.1), [partial(build, False)] * 2
    first, second = asynchronous_workers(models, make, batches[0], exchange_every=2)
    fixed = {id(v) for v in first.model.get_layer("fixed").weights}
    shared = [s.remote for s in first.state.shared_variables if id(s.local) in fixed]
    assert len(shared) == 2
    for variable in shared:
        variable.assign(tf.fill(variable.shape, 3.0))  # another value than both workers have
    step_with(second, *batches)
    check(second, batches, *moving(batches, np.zeros(1), np.ones(1)))
    assert all((variable.numpy() == 3.0).all() for variable in shared)
