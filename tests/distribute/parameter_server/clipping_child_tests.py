"""Tests of clipping by norm, run by test_one_process.py in a child process."""

from functools import cache, partial

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.exchange_child_tests import messages
from tests.distribute.parameter_server.model import builder, same, whole_batches
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    child_test,
    expect_error,
    first_servers,
    grouped_model,
    plan_of,
    train_alone,
    trainer,
)
from twml_ops import optimizers


def norms_model():
    return builder(norm=True)  # weights in front of the table have gradients


def free():
    return optimizers.SGD(0.5)


def limit_of_each():
    return optimizers.SGD(0.5, clipnorm=0.05)


def limit_of_all():
    return optimizers.SGD(0.5, global_clipnorm=0.1)


def limit_by_table_free():
    by_table = {"^ads/user": optimizers.SGD(0.5), "^ads/ad": optimizers.Adagrad(0.1)}
    return optimizers.CompositeOptimizer(optimizers.SGD(0.5), by_table)


def limit_by_table():
    """Each optimizer limits the norm of its own gradients: of a table, or of dense weights."""
    by_table = {
        "^ads/user": optimizers.SGD(0.5, global_clipnorm=0.01),
        "^ads/ad": optimizers.Adagrad(0.1, clipnorm=0.01),
    }
    return optimizers.CompositeOptimizer(optimizers.SGD(0.5, global_clipnorm=0.02), by_table)


@cache
def trained_alone(make, build):
    return train_alone(make(), build)


def assert_clipped_as_alone(make, unclipped, build, **options):
    """Compares with a single process, whose clipping changes the weights."""
    want, free = (trained_alone(each, build) for each in (make, unclipped))
    assert any(np.abs(a - b).max() > 1e-2 for a, b in zip(want, free, strict=True))
    hybrid = trainer(make(), build=build, **options)
    hybrid.fit(lambda _: whole_batches(), 10)
    same(want, hybrid.export().get_weights(), 1e-5)


@child_test
def gradients_are_clipped_by_the_norms_of_a_single_process():
    for make, servers, axis in ((limit_of_each, 2, "column"), (limit_of_all, 3, "row")):
        options = {"cluster": first_servers(servers), "partition_axis": axis}
        assert_clipped_as_alone(make, free, builder, **options)


@child_test
def each_optimizer_clips_its_own_variables_on_any_servers():
    """The tables have several uses, whose rows are added before their norm is computed."""
    plan = plan_of(3, ("table", 1), ("row", 0))
    options = {"cluster": first_servers(3), "plan": plan}
    assert_clipped_as_alone(limit_by_table, limit_by_table_free, grouped_model, **options)


@child_test
def an_asynchronous_worker_clips_the_dense_weights_on_servers_by_the_norm_of_all_its_gradients():
    """Weights in front of the table, whose gradients come from servers, count in the norm."""
    options = {"cluster": TWO_WORKERS, "mode": "async", "partition_axis": "row"}
    assert_clipped_as_alone(limit_of_all, free, norms_model, **options)


@child_test
def only_norms_that_no_server_knows_alone_are_sent():
    whole = {"plan": plan_of(2, ("table", 1))}
    divided = {"partition_axis": "row"}
    for make, options, more in (
        (limit_of_each, whole, 0), (limit_of_each, divided, 2 * 2), (limit_of_all, whole, 2),
    ):  # fmt: skip
        hybrid = trainer(make(), **options)
        hybrid.build(whole_batches()[0])
        servers = 1 if options is whole else 2
        assert len(messages(hybrid)) == 3 * servers + more, (make, options)


@child_test
def a_gradient_that_is_not_finite_shows_in_the_weights():
    hybrid = trainer(limit_of_all(), partition_axis="row")
    (ids, values), y = whole_batches()[0]
    broken = values.with_flat_values(tf.fill([values.flat_values.shape[0]], float("nan")))
    hybrid.fit(lambda _: [((ids, broken), y)], 1)
    assert any(np.isnan(w).any() for w in hybrid.export().get_weights())


@child_test
def clipping_by_norm_is_refused_with_several_steps_an_exchange():
    for optimizer in (limit_of_each(), limit_of_all()):
        make = partial(trainer, optimizer, exchange_every=2)
        expect_error(ValueError, "global_clipnorm need exchange_every=1, got 2", make)
