"""Tests of the messages of a step, run by test_one_process.py in a child process."""

import tempfile
from functools import partial

import numpy as np
import tensorflow as tf

from tests.distribute.parameter_server.checkpoint_child_tests import with_dropout
from tests.distribute.parameter_server.model import (
    ROWS,
    batches,
    builder,
    model_with_states,
    same,
    whole_batches,
)
from tests.distribute.parameter_server.trainers import (
    TWO_WORKERS,
    child_test,
    grouped_model,
    plan_of,
    train_alone,
    trainer,
)
from tests.distribute.parameter_server.training_child_tests import optimizer_by_table
from twml_ops import layers, ops, optimizers
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
    # Before, the gradients of values, and the gradient of the bias; the state goes with the others.
    norms = 2 * SERVERS + 1
    for build, more, before in (
        (builder, {"max_staleness": 3}, 0),
        (grouped_model, {}, 0),
        (grouped_model, {"wire_dtype": "bfloat16"}, 0),
        (grouped_model, {"wire_dtype": "float32", "gradient_wire_dtype": "int8"}, 0),
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


@child_test
def synchronous_workers_send_the_states_that_batches_change():
    biases = 2 * 3  # of two layers, whose gradients are slices
    for changing, expected in ((False, 2), (True, 2 + biases + 2)):  # states of two types
        build = partial(model_with_states, changing)
        hybrid = trainer(optimizers.Adagrad(0.1), build=build, cluster=TWO_WORKERS)
        x, y = whole_batches()[0]
        hybrid.build((x, y))
        step = tf.function(hybrid._graph.train, autograph=False)
        graph = step.get_concrete_function(tf.constant(0, tf.int64), [(x, y, None)]).graph
        types = [
            [t.name for t in op.get_attr("component_types")]
            for op in graph.get_operations()
            if op.type == "QueueDequeueV2"
        ]
        (dense,) = [t for t in types if "int32" not in t and len(t) > 1]
        assert len(dense) == expected, types


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
    plan = plan_of(2, ("table", 1), ("table", 0), ("row", 1))
    for options in ({"partition_axis": "row"}, {"partition_axis": "column"}, {"plan": plan}):
        hybrid = trainer(optimizers.Adagrad(0.1), build=chained_model, **options)
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
        {"wire_dtype": "int8", "partition_axis": "row", "build": grouped_model},
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
    for wire in ("float32", "int8"):
        found = []
        for change in (list, without_sessions):
            hybrid = trainer(optimizers.Adagrad(0.1), partition_axis="row", wire_dtype=wire)
            hybrid.build(whole_batches()[0])
            hybrid.placement.links = change(hybrid.placement.links)
            hybrid.fit(batches, 4)
            found.append(hybrid.export().get_weights())
        same(*found)


@child_test
def gradients_are_sent_as_they_are_encoded():
    """A step of SGD by column with one worker changes the tables by the rounded gradients."""
    build = partial(table_of_one_id, FEW)
    ids, rows = np.arange(FEW)[::-1].copy(), np.random.default_rng(1).normal(size=(FEW, 8))
    x = tf.RaggedTensor.from_row_splits(ids, np.arange(FEW + 1))
    gradient = (np.float32(-2) * rows.astype("f") / (FEW * 8)).astype("f")
    hybrid = trainer(
        optimizers.SGD(1.0),
        build=build,
        loss="mse",
        partition_axis="column",
        gradient_wire_dtype="int8",
    )
    hybrid.fit(lambda _: [(x, rows.astype("f"))], 1)
    want = np.zeros((FEW, 8), np.float32)
    for p, columns in enumerate((slice(0, 4), slice(4, 8))):
        encoded = ops.rows_to_int8(gradient[:, columns], seed=0, stream=p)
        want[ids, columns] = -np.asarray(ops.rows_from_int8(*encoded))
    (got,) = hybrid.export().get_weights()
    np.testing.assert_allclose(got, want, rtol=1e-6)


FEW = 6


def table_of_one_id(rows):
    """The rows of a table of zeros for one id an example."""
    ids = tf.keras.Input([None], dtype="int64", ragged=True)
    return tf.keras.Model(
        ids, layers.SparseLinear(8, rows, use_bias=False, kernel_initializer="zeros")(ids)
    )


@child_test
def small_gradients_are_not_lost_in_int8():
    """The gradients of the second column are less than half a code of the first one's."""
    steps, x = 30, tf.RaggedTensor.from_row_splits(np.arange(FEW), np.arange(FEW + 1))
    goals = np.tile(np.float32([1, 1e-3] * 4), (FEW, 1))
    changes = {}
    for types in ("float32", "int8"), ("int8", "int8"), ("float32", "float32"):
        hybrid = trainer(
            optimizers.SGD(0.01),
            build=partial(table_of_one_id, FEW),
            loss=lambda y, output: -tf.reduce_sum(y * output),
            partition_axis="row",
            wire_dtype=types[0],
            gradient_wire_dtype=types[1],
        )
        hybrid.fit(lambda _: [(x, goals)], steps)
        (changes[types],) = hybrid.export().get_weights()
    want = changes.pop(("float32", "float32"))
    np.testing.assert_allclose(want.mean(0), 0.01 * steps * goals[0], rtol=1e-3)
    codes = ops.rows_to_int8(goals)[0].numpy()
    np.testing.assert_array_equal(codes[0, :2], [127, 0])  # nothing is left to the nearest
    for found in changes.values():
        np.testing.assert_allclose(found[:, ::2], want[:, ::2], rtol=1e-3)
        assert 0.7 < found[:, 1::2].sum() / want[:, 1::2].sum() < 1.3


@child_test
def a_checkpoint_does_not_depend_on_the_wire():
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_axis": "row", "checkpoint_dir": folder}
        narrow = trainer(optimizers.Adagrad(0.1), wire_dtype="int8", **options)
        narrow.fit(batches, 3)
        wide = trainer(optimizers.Adagrad(0.1), **options)
        wide.fit(batches, 3)
        assert wide.state.step.numpy() == 3
        same(narrow.export().get_weights(), wide.export().get_weights())


@child_test
def a_product_that_is_not_finite_is_not_lost():
    ids, values = (tf.keras.Input([None], dtype=t, ragged=True) for t in ("int64", "float32"))
    wide = layers.SparseLinear(4, ROWS, use_bias=False, kernel_initializer="ones")([ids, values])
    x = [tf.ragged.constant([[1], [2], [3]], tf.int64)]
    x.append(tf.ragged.constant([[1.0], [np.inf], [np.nan]]))
    build = lambda: tf.keras.Model([ids, values], wide)  # noqa: E731
    hybrid = trainer(optimizers.SGD(0.1), build=build, loss="mse", wire_dtype="int8")
    result = hybrid.fit(lambda _: [(x, np.ones((3, 4), "f"))], 1)
    assert not np.isfinite(result.losses).any()
