"""Tests of `HybridTrainer(exchange_every=k)`, run by test_one_process.py in a child process."""

import functools
import itertools
import tempfile

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.checkpoint_child_tests import with_dropout
from tests.distribute.parameter_server.exchange_child_tests import (
    ENTRIES,
    GRADIENTS,
    PRODUCTS,
    chained_model,
    messages,
)
from tests.distribute.parameter_server.model import ROWS, batches, builder, same, whole_batches
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    child_test,
    expect_error,
    grouped_model,
    trainer,
)
from tests.distribute.parameter_server.training_child_tests import table_only
from twml_ops import layers, optimizers
from twml_ops.ops._tape import tf_variable


def add(gradients):
    """The sum of the gradients of several batches."""
    if not isinstance(gradients[0], tf.IndexedSlices):
        return tf.add_n(gradients)
    values, indices = (
        tf.concat([getattr(g, name) for g in gradients], 0) for name in ("values", "indices")
    )
    return tf.IndexedSlices(values, indices, gradients[0].dense_shape)


def train_in_groups(make, sizes, on_servers=None, stale=False, data=whole_batches, build=builder):
    """Trains in one process as groups of batches with an exchange each do.

    Args:
        make: () -> an optimizer.
        sizes: the sizes of the groups.
        on_servers: () -> the optimizer of the dense weights that workers share, which gets the sums
            of their gradients and decays weights as in so many steps; None: one worker has them.
        stale: whether the table of a group is that before the last update.

    Returns:
        The weights and the losses.
    """
    model = build()
    table = tf_variable(model.get_layer("table").kernels[0])
    norms = [layer for layer in model.layers if isinstance(layer, layers.MaxNorm)]
    last = [table, *(tf_variable(v) for layer in norms for v in layer.trainable_variables)]
    dense = [
        tf_variable(v)
        for v in model.trainable_variables
        if not any(tf_variable(v) is each for each in last)
    ]
    of_table, local = make(), make()
    shared = None if on_servers is None else on_servers()
    decay = None if shared is None else shared.weight_decay
    of_table.build(last)
    for each in (local, shared):
        if each is not None:
            each.build(dense)
    losses, step, endless = [], 0, itertools.cycle(data())
    seen = table.numpy()
    for size in sizes:
        now, pulled = table.numpy(), [v.numpy() for v in dense]
        table.assign(seen if stale else now)
        found = []
        local.iterations.assign(step)
        for x, y in itertools.islice(endless, size):
            with tf.GradientTape() as tape:
                losses.append(tf.keras.losses.BinaryCrossentropy()(y, model(x, training=True)))
            found.append(tape.gradient(losses[-1], [*last, *dense]))
            local.apply_gradients(zip(found[-1][len(last) :], dense, strict=True))
        sums = [add(g) for g in zip(*found, strict=True)]
        of_dense = sums[len(last) :]
        table.assign(now)
        of_table.iterations.assign(step)
        of_table.apply_gradients(zip(sums, last, strict=False))
        if shared is not None:
            for v, value in zip(dense, pulled, strict=True):
                v.assign(value)
            shared.weight_decay = decay and decay * size
            shared.apply_gradients(zip(of_dense, dense, strict=True))
        seen, step = now, step + size
    return model.get_weights(), np.array(losses)


@child_test
def a_group_is_a_step_with_the_sum_of_the_losses_of_its_batches_if_only_tables_train():
    """For SGD: a step of the joined batch with k times the learning rate."""
    steps, k = 8, 4
    joined = []
    for first in range(0, steps, k):
        x, y = zip(*whole_batches()[first : first + k], strict=True)
        joined.append(([tf.concat(part, 0) for part in zip(*x, strict=True)], tf.concat(y, 0)))
    for make, weight, axis in (
        (lambda rate=0.5: optimizers.SGD(rate), None, "column"),
        (lambda: optimizers.Adagrad(0.1), [float(k)], "row"),
    ):
        plain = table_only()
        optimizer = make(0.5 * k) if weight is None else make()
        plain.compile(optimizer, "mse", loss_weights=weight, jit_compile=False)
        for x, y in joined:
            plain.train_on_batch(tuple(x), y)
        options = {"build": table_only, "loss": "mse", "partition_axis": axis}
        hybrid = trainer(make(), exchange_every=k, **options)
        hybrid.fit(batches, steps)
        same(plain.get_weights(), hybrid.export().get_weights(), 2e-6)


@child_test
def the_dense_part_makes_a_step_for_each_batch_and_the_table_one_for_the_group():
    def schedule():
        return optimizers.SGD(tf.keras.optimizers.schedules.ExponentialDecay(1.0, 3, 0.7))

    for make, options in (
        (lambda: optimizers.Adagrad(0.1), {"partition_axis": "row"}),
        (schedule, {"partition_axis": "column"}),
    ):
        hybrid = trainer(make(), exchange_every=4, **options)
        result = hybrid.fit(batches, 19)
        weights, losses = train_in_groups(make, [4, 4, 4, 4, 1, 1, 1])
        assert (result.step, result.own_steps) == (19, 19)
        np.testing.assert_allclose(result.losses, losses, 1e-5)
        same(weights, hybrid.export().get_weights(), 5e-6)


@child_test
def dense_weights_of_several_workers_are_updated_by_the_sum_of_the_gradients():
    """The other worker does not take part."""
    for make in (
        lambda: optimizers.Adagrad(0.1),
        lambda: optimizers.SGD(0.5, weight_decay=0.1),
    ):
        options = {"cluster": TWO_WORKERS, "mode": "async", "max_staleness": 100}
        hybrid = trainer(make(), exchange_every=4, partition_axis="row", **options)
        hybrid.fit(lambda _: whole_batches(), 13)
        weights, _ = train_in_groups(make, [4, 4, 1, 1, 1, 1, 1], on_servers=make)
        same(weights, hybrid.export().get_weights(), 5e-6)
        assert hybrid.state.worker_steps.numpy().tolist() == [13, 0]


@child_test
def a_row_of_a_replicated_table_decays_once_in_a_group_of_several_workers_as_on_servers():
    """No id is in two batches, for which the copy of a worker would have newer rows."""
    data = [
        ((ids.with_values(ids.values % 70 + 70 * i), values), y)
        for i, ((ids, values), y) in enumerate(whole_batches()[:4])
    ]
    found = []
    for rows in (0, ROWS):
        options = {"cluster": TWO_WORKERS, "mode": "async", "replicated_rows": rows}
        hybrid = trainer(optimizers.SGD(0.1, weight_decay=2.0), exchange_every=4, **options)
        hybrid.fit(lambda _: data, 8)
        found.append(hybrid.export().get_weights())
    same(*found, 2e-6)


@child_test
def weights_in_front_of_a_table_make_a_step_for_the_group():
    def build():
        return builder(norm=True)

    make = functools.partial(optimizers.Adagrad, 0.1)
    weights, losses = train_in_groups(make, [3, 3, 1], build=build)
    for axis in ("row", "column"):
        hybrid = trainer(make(), exchange_every=3, partition_axis=axis, build=build)
        result = hybrid.fit(batches, 7)
        np.testing.assert_allclose(result.losses, losses, 1e-5)
        same(weights, hybrid.export().get_weights(), 5e-6)


@child_test
def a_pipeline_of_groups_uses_tables_that_are_one_group_old():
    make = functools.partial(optimizers.Adagrad, 0.1)
    hybrid = trainer(make(), exchange_every=4, pipeline=True, partition_axis="row")
    hybrid.fit(batches, 12)
    weights, _ = train_in_groups(make, [4, 4, 4], stale=True)
    same(weights, hybrid.export().get_weights(), 5e-6)
    assert hybrid.fit(batches, 18).own_steps == 6


@child_test
def groups_of_a_call_are_the_same_groups():
    for options in (
        {"partition_axis": "column", "build": with_dropout},
        {
            "partition_axis": "row",
            "build": grouped_model,
            "pipeline": True,
            "wire_dtype": "int8",
        },
    ):
        found = []
        for together in (None, 4):
            hybrid = trainer(
                optimizers.Adagrad(0.1), exchange_every=2, steps_per_execution=together, **options
            )
            called = []
            result = hybrid.fit(batches, 7, lambda step, loss, called=called: called.append(step))
            assert called == ([2, 4, 6, 7] if together is None else [4, 6, 7])
            found.append([result.losses, *hybrid.export().get_weights()])
        same(*found)


@child_test
def an_exchange_has_the_messages_of_one_step():
    hybrid = trainer(
        optimizers.SGD(0.1), build=grouped_model, partition_axis="row", exchange_every=3
    )
    hybrid.fit(batches, 1)
    for steps, exchanges in ((3, 1), (6, 2), (1, 1)):
        sent = messages(hybrid, steps)
        assert len(sent) == exchanges * 2 * len([ENTRIES, PRODUCTS, GRADIENTS])


@child_test
def a_run_in_groups_continues_from_its_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        for servers, steps in ((2, 8), (3, 14)):
            options = {"checkpoint_dir": folder, "partition_axis": "row", "exchange_every": 4}
            hybrid = trainer(optimizers.Adagrad(0.1), servers, checkpoint_every=6, **options)
            result = hybrid.fit(batches, steps)
            assert result.step == steps
    weights, _ = train_in_groups(lambda: optimizers.Adagrad(0.1), [4, 4, 4, 1, 1])
    same(weights, hybrid.export().get_weights(), 5e-6)


@child_test
def batches_of_a_group_may_have_different_sizes():
    def data():
        return [((i[:n], v[:n]), y[:n]) for n, ((i, v), y) in enumerate(whole_batches(), 5)]

    hybrid = trainer(optimizers.SGD(0.5), partition_axis="row", exchange_every=4)
    hybrid.fit(lambda _: data(), 8)
    weights, _ = train_in_groups(lambda: optimizers.SGD(0.5), [4, 4], data=data)
    same(weights, hybrid.export().get_weights(), 5e-6)


@child_test
def an_invalid_id_in_a_group_is_an_error_that_changes_no_weights():
    hybrid = trainer(optimizers.SGD(0.1), partition_axis="row", exchange_every=2)
    hybrid.fit(batches, 2)
    before = hybrid.export().get_weights()
    (ids, values), y = whole_batches()[0]
    bad = ids.with_flat_values(ids.flat_values + 2**40)
    data = [((ids, values), y), ((bad, values), y)]
    expect_error(tf.errors.InvalidArgumentError, "ids", lambda: hybrid.fit(lambda _: data, 4))
    same(before, hybrid.export().get_weights())


@child_test
def what_groups_cannot_do_is_refused():
    rate = optimizers.SGD(0.1)
    for options, message in (
        ({"exchange_every": 0}, "exchange_every must be at least 1, got 0"),
        ({"exchange_every": 4, "steps_per_execution": 6}, "multiple of exchange_every, 4, got 6"),
    ):
        expect_error(ValueError, message, lambda options=options: trainer(rate, **options))
    expect_error(
        ValueError,
        'exchange_every=2 needs one worker, or mode="async"',
        lambda: trainer(rate, exchange_every=2, cluster=TWO_WORKERS),
    )
    hybrid = trainer(rate, exchange_every=2, partition_axis="row", build=chained_model)
    expect_error(ValueError, "no table is behind another one", lambda: hybrid.fit(batches, 2))
