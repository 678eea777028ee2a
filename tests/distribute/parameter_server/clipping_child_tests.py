"""Tests of clipping by norm, run by test_one_process.py in a child process."""

from functools import partial

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.exchange_child_tests import messages
from tests.distribute.parameter_server.model import batches, builder, same, whole_batches
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

LIMITS = {"clipnorm": 0.05, "global_clipnorm": 0.1}
"""Limits that the gradients of `builder` exceed in every step."""


def norms_model():
    return builder(norm=True)  # weights in front of the table have gradients


def one_limit(name):
    return optimizers.SGD(0.5, **{name: LIMITS[name]})


def limit_by_table():
    """Each optimizer limits the norm of its own gradients: of a table, or of dense weights."""
    by_table = {
        "^ads/user": optimizers.SGD(0.5, global_clipnorm=0.01),
        "^ads/ad": optimizers.Adagrad(0.1, clipnorm=0.01),
    }
    return optimizers.CompositeOptimizer(optimizers.SGD(0.5, global_clipnorm=0.02), by_table)


def assert_clipped_as_alone(make, unclipped, build, **options):
    """Compares with a single process, whose clipping changes the weights."""
    want = train_alone(make(), build)
    free = train_alone(unclipped, build)
    assert any(np.abs(a - b).max() > 1e-2 for a, b in zip(want, free, strict=True))
    hybrid = trainer(make(), build=build, **options)
    hybrid.fit(lambda _: whole_batches(), 10)
    same(want, hybrid.export().get_weights(), 1e-5)


@child_test
def gradients_are_clipped_by_the_norms_of_a_single_process():
    for name, servers, axis in (
        ("clipnorm", 2, "column"), ("global_clipnorm", 1, "row"), ("global_clipnorm", 3, "row"),
    ):  # fmt: skip
        options = {"cluster": first_servers(servers), "partition_axis": axis}
        assert_clipped_as_alone(partial(one_limit, name), optimizers.SGD(0.5), builder, **options)


@child_test
def weights_in_front_of_a_table_count_in_the_norm():
    make = partial(one_limit, "global_clipnorm")
    assert_clipped_as_alone(make, optimizers.SGD(0.5), norms_model, partition_axis="row")


@child_test
def each_optimizer_clips_its_own_variables_on_any_servers():
    """The tables have several uses, whose rows are added before their norm is computed."""
    free = optimizers.CompositeOptimizer(
        optimizers.SGD(0.5), {"^ads/user": optimizers.SGD(0.5), "^ads/ad": optimizers.Adagrad(0.1)}
    )
    plan = plan_of(3, ("table", 1), ("row", 0))
    options = {"cluster": first_servers(3), "plan": plan}
    assert_clipped_as_alone(limit_by_table, free, grouped_model, **options)


@child_test
def an_asynchronous_worker_clips_the_dense_weights_on_servers_by_its_own_norms():
    for name in LIMITS:
        options = {"cluster": TWO_WORKERS, "mode": "async", "partition_axis": "row"}
        make = partial(one_limit, name)
        assert_clipped_as_alone(make, optimizers.SGD(0.5), builder, **options)


@child_test
def only_norms_that_no_server_knows_alone_are_sent():
    whole = {"plan": plan_of(2, ("table", 1))}
    divided = {"partition_axis": "row"}
    for name, options, more in (
        ("clipnorm", whole, 0), ("clipnorm", divided, 2 * 2),
        ("global_clipnorm", whole, 2), ("global_clipnorm", divided, 2 * 2),
    ):  # fmt: skip
        hybrid = trainer(one_limit(name), **options)
        hybrid.fit(batches, 1)
        servers = 1 if options is whole else 2
        assert len(messages(hybrid)) == 3 * servers + more, (name, options)


@child_test
def a_gradient_that_is_not_finite_shows_in_the_weights():
    hybrid = trainer(one_limit("global_clipnorm"), partition_axis="row")
    (ids, values), y = whole_batches()[0]
    broken = values.with_flat_values(tf.fill([values.flat_values.shape[0]], float("nan")))
    hybrid.fit(lambda _: [((ids, broken), y)], 1)
    assert any(np.isnan(w).any() for w in hybrid.export().get_weights())


@child_test
def clipping_by_norm_is_refused_with_several_steps_an_exchange():
    for name in LIMITS:
        make = partial(trainer, one_limit(name), exchange_every=2)
        expect_error(ValueError, "global_clipnorm need exchange_every=1, got 2", make)
