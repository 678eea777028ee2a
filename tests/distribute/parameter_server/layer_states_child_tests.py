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


def sums_of(batch):
    return batch[0][1].numpy().sum(axis=1)


@child_test
def states_of_layers_learn_from_the_batches_of_all_asynchronous_workers():
    """In the order of the updates; a change is added to the state that others have changed."""
    for options in ({}, {"exchange_every": 2}):
        batches, k = whole_batches(), options.get("exchange_every", 1)
        first, second = asynchronous_workers(
            [partial(build, k == 1), partial(build, False)],
            partial(optimizers.SGD, 0.1),
            batches[0],
            **options,
        )
        mean, variance = np.zeros(1), np.ones(1)
        groups = [batches[i : i + k] for i in range(0, len(batches), k)]

        def after(group, mean, variance):
            for each in group:
                mean = 0.9 * mean + 0.1 * sums_of(each).mean()
                variance = 0.9 * variance + 0.1 * sums_of(each).var()
            return mean, variance

        if k == 1:
            stop = first.model.get_layer("stop")
            stop.go.enqueue(0.0)
        for hybrid, group in zip((second, first, second), groups, strict=False):
            step_with(hybrid, *group)
            mean, variance = after(group, mean, variance)
        check(second, batches[: 3 * k], mean, variance)
        if k > 1:
            continue
        late = stop.step_until_there(first, *groups[3])
        step_with(second, *groups[4])
        stop.go.enqueue(0.0)
        late.join()
        found = [after(groups[i], mean, variance) for i in (3, 4)]
        want = [x + sum(f[i] - x for f in found) for i, x in enumerate((mean, variance))]
        check(first, batches[:5], *want)


@child_test
def weights_that_nothing_changes_are_not_sent_back():
    """A worker changes the states that its batches change, and no other ones."""
    batches = whole_batches()
    models = [partial(model_with_states, False)] * 2
    first, second = asynchronous_workers(models, partial(optimizers.SGD, 0.1), batches[0])
    fixed = [s for s in first.state.shared_variables if not s.trained]
    assert fixed
    for shared in fixed:
        shared.remote.assign(tf.fill(shared.remote.shape, 3.0))
    for hybrid in (first, second):
        step_with(hybrid, batches[0])
    assert all((shared.remote.numpy() == 3.0).all() for shared in fixed)
