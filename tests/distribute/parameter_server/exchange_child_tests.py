"""Tests of the messages of a step, run by test_one_process.py in a child process."""

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.checkpoint_child_tests import with_dropout
from tests.distribute.parameter_server.model import ROWS, batches, builder, same, whole_batches
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    child_test,
    grouped_model,
    train_alone,
    trainer,
)
from tests.distribute.parameter_server.training_child_tests import optimizer_by_table
from twml_ops import layers, optimizers
from twml_ops.distribute.parameter_server.transport import without_sessions

SERVERS = 2
ENTRIES, PRODUCTS, GRADIENTS, VALUES_GRADIENTS = range(4)  # the messages of an exchange


def messages(hybrid, steps=1):
    """The messages of a call; TensorFlow sends nothing in it."""
    x, y = whole_batches()[0]
    step = tf.function(hybrid._graph.train, autograph=False)
    number = tf.constant(0, tf.int64)
    graph = step.get_concrete_function(number, [(x, y, None)] * steps).graph
    ops = graph.get_operations()
    for op in ops:
        before = [(t.op, t.name) for t in op.inputs if t.dtype != tf.resource]
        for source, name in [*before, *((c, c.name) for c in op.control_inputs)]:
            same = source.type == "Placeholder" or _task(source) == _task(op)
            assert same or "control_outputs" in op.name, (name, op.name)
    sent, received = (
        [(op.get_attr("number"), _task(op)) for op in ops if op.type == f"Twml>{kind}Message"]
        for kind in ("Send", "Receive")
    )
    assert sorted(n for n, _ in sent) == sorted(n for n, _ in received)
    return sent


def _task(op):
    task = op.device.partition("/device")[0]
    return task if "job:ps" in task else "worker"


@child_test
def a_step_has_one_message_a_server_and_direction_for_all_tables():
    for build, axis, kinds in (
        (builder, "row", [ENTRIES, PRODUCTS, GRADIENTS]),
        (grouped_model, "row", [ENTRIES, PRODUCTS, GRADIENTS]),
        (grouped_model, "column", [ENTRIES, PRODUCTS, GRADIENTS]),
        (lambda: builder(norm=True), "column", [ENTRIES, PRODUCTS, GRADIENTS, VALUES_GRADIENTS]),
    ):
        make = optimizer_by_table if build is grouped_model else optimizers.LazyAdam
        hybrid = trainer(make(), build=build, partition_axis=axis)
        hybrid.fit(batches, 1)
        for steps in (1, 3):
            sent = messages(hybrid, steps)
            assert len(sent) == steps * SERVERS * len(kinds), sent


@child_test
def asynchronous_workers_share_dense_weights_in_the_same_messages():
    step_of_the_run = 1  # a message of a call
    norms = 3 * SERVERS  # before and after, and the gradients of values
    for build, more, before in (
        (builder, {"max_staleness": 3}, 0),
        (grouped_model, {}, 0),
        (grouped_model, {"wire_dtype": "bfloat16"}, 0),
        (lambda: builder(norm=True), {"max_staleness": 3, "wire_dtype": "bfloat16"}, norms),
    ):
        options = {"build": build, "cluster": TWO_WORKERS, "mode": "async"}
        hybrid = trainer(optimizers.Adagrad(0.1), **options, **more)
        hybrid.fit(batches, 1)
        for steps in (1, 3):
            sent = messages(hybrid, steps)
            assert len(sent) == steps * (3 * SERVERS + before) + step_of_the_run, sent


@child_test
def one_asynchronous_worker_of_several_trains_as_one_process():
    for build, together in (
        (builder, 3),
        (grouped_model, 1),
        (lambda: builder(norm=True), 3),
    ):
        want = train_alone(optimizers.Adagrad(0.1), build)
        options = {"mode": "async", "steps_per_execution": together, "build": build}
        hybrid = trainer(optimizers.Adagrad(0.1), cluster=TWO_WORKERS, **options)
        assert hybrid.fit(lambda _: whole_batches(), 10).step == 10
        same(want, hybrid.export().get_weights(), 5e-6)


def chained_model():
    """A model in which the values of a table's entries depend on the product with another one."""
    tf.keras.utils.set_random_seed(5)
    ids, values = (tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32"))
    scale = layers.SparseLinear(2, ROWS, activation="sigmoid", name="scale")([ids, values])
    scaled = ScaleRows()([values, scale])
    hidden = [layers.SparseLinear(4, ROWS, name="second")([ids, scaled])]
    hidden.append(layers.SparseLinear(6, ROWS, name="first")([ids, values]))
    joined = tf.keras.layers.Concatenate()(hidden)
    return tf.keras.Model([ids, values], tf.keras.layers.Dense(1, activation="sigmoid")(joined))


class ScaleRows(tf.keras.layers.Layer):
    """Multiplies the values of each row by the first of two numbers [B, 2]."""

    def call(self, inputs):
        values, scale = inputs
        by_entry = tf.gather(scale[:, 0], values.value_rowids())
        return values.with_flat_values(values.flat_values * by_entry)

    def compute_output_shape(self, input_shape):
        return input_shape[0]


@child_test
def tables_behind_tables_are_multiplied_in_their_order():
    want = train_alone(optimizers.Adagrad(0.1), chained_model)
    for axis in ("row", "column"):
        hybrid = trainer(optimizers.Adagrad(0.1), build=chained_model, partition_axis=axis)
        hybrid.fit(batches, 10)
        same(want, hybrid.export().get_weights(), 5e-6)
    x, y = whole_batches()[0]
    plain = hybrid.export()
    loss = tf.keras.losses.BinaryCrossentropy()(y, plain(x))
    np.testing.assert_allclose(hybrid.evaluate([(x, y)])["loss"], float(loss), rtol=1e-5)


@child_test
def several_tables_may_be_sent_in_16_bits_and_ahead():
    want = train_alone(optimizer_by_table(), grouped_model)
    hybrid = trainer(optimizer_by_table(), build=grouped_model, wire_dtype="float16")
    hybrid.fit(batches, 10)
    same(want, hybrid.export().get_weights(), 5e-3)
    ahead = []
    for axis in ("row", "column"):
        options = {"build": grouped_model, "partition_axis": axis, "pipeline": True}
        hybrid = trainer(optimizers.Adagrad(0.1), **options)
        hybrid.fit(batches, 10)
        ahead.append(hybrid.export().get_weights())
    same(*ahead, 2e-5)


@child_test
def the_model_of_a_trainer_can_be_called_outside_of_its_steps():
    hybrid = trainer(optimizers.SGD(0.1), build=grouped_model, partition_axis="row")
    hybrid.fit(batches, 2)
    x, _ = whole_batches()[0]
    np.testing.assert_allclose(hybrid.model(x), hybrid.export()(x), rtol=1e-5, atol=1e-6)


@child_test
def several_steps_of_a_call_are_the_same_steps():
    for options in (
        {"partition_axis": "column", "build": grouped_model},
        {"pipeline": True, "partition_axis": "row"},
        {"build": with_dropout, "partition_axis": "row"},
    ):
        found = []
        for together in (1, 3):
            hybrid = trainer(optimizers.Adagrad(0.1), steps_per_execution=together, **options)
            called = []
            result = hybrid.fit(batches, 11, lambda step, loss, called=called: called.append(step))
            assert (result.step, result.own_steps) == (11, 11)
            assert called == ([3, 6, 9, 10, 11] if together == 3 else list(range(1, 12)))
            found.append([result.losses, *hybrid.export().get_weights()])
        same(*found)


@child_test
def tensorflow_sends_the_same_numbers_where_no_port_can_be_reached():
    found = []
    for change in (list, without_sessions):
        hybrid = trainer(optimizers.Adagrad(0.1), partition_axis="row")
        hybrid.build(whole_batches()[0])
        hybrid.placement.links = change(hybrid.placement.links)
        hybrid.fit(batches, 4)
        found.append(hybrid.export().get_weights())
    same(*found)
