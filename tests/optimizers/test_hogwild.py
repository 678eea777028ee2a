"""Hogwild: steps from several threads update one table without waiting for each other."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, ops, optimizers

N, D, THREADS, STEPS = 64, 6, 4, 25


def train(concurrency, ids_of_thread, table, fused=True):
    """Every thread takes STEPS steps of SGD on a loss of gradient 1 in each of its rows."""
    optimizer = optimizers.SGD(0.5, concurrency=concurrency)
    optimizer.build([table])

    @tf.function(reduce_retracing=True)
    def step(ids):
        splits = tf.range(tf.size(ids, tf.int64) + 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear(ids, None, splits, table))
        gradient = tape.gradient(loss, table)
        if not fused:
            gradient = tf.IndexedSlices(gradient.values * 1.0, gradient.indices)
        optimizer.apply_gradients([(gradient, table)])

    ids = [tf.constant(i, tf.int64) for i in ids_of_thread]
    step.get_concrete_function(tf.TensorSpec([None], tf.int64))

    def work(mine):
        for _ in range(STEPS):
            step(mine)

    threads = [threading.Thread(target=work, args=[mine]) for mine in ids]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return table.numpy()


def graph_ops(function):
    return {node.op: node for node in function.graph.as_graph_def().node}


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by slices"])
@pytest.mark.parametrize("concurrency", ["locked", "hogwild"])
def test_threads_on_rows_of_their_own_lose_nothing(concurrency, fused):
    table = tf.Variable(tf.zeros([N, D]))
    rows = np.arange(N).reshape(THREADS, -1)
    trained = train(concurrency, rows, table, fused)
    np.testing.assert_array_equal(trained, np.full((N, D), -0.5 * STEPS, np.float32))


def test_locked_threads_on_the_same_rows_lose_nothing():
    table = tf.Variable(tf.zeros([N, D]))
    trained = train("locked", [np.arange(N)] * THREADS, table)
    np.testing.assert_array_equal(trained, np.full((N, D), -0.5 * STEPS * THREADS, np.float32))


def test_hogwild_threads_on_the_same_rows_lose_whole_updates_at_most():
    table = tf.Variable(tf.zeros([N, D]))
    trained = train("hogwild", [np.arange(N)] * THREADS, table)
    steps = trained / -0.5
    np.testing.assert_array_equal(steps, np.round(steps))  # no torn or foreign values
    assert steps.min() >= 1
    assert steps.max() <= STEPS * THREADS


def test_a_table_that_somebody_else_holds_is_copied_not_changed_under_them():
    table = tf.Variable(tf.zeros([N, D]))
    held = table.read_value()
    train("hogwild", np.arange(N).reshape(THREADS, -1), table)
    np.testing.assert_array_equal(held, np.zeros((N, D)))
    np.testing.assert_array_equal(table, np.full((N, D), -0.5 * STEPS, np.float32))


@pytest.mark.parametrize(("concurrency", "want"), [("locked", False), ("hogwild", True)])
def test_the_mode_reaches_the_op(concurrency, want):
    table = tf.Variable(tf.zeros([N, D]))
    optimizer = optimizers.Adagrad(0.5, concurrency=concurrency)
    optimizer.build([table])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear([1, 2], None, [0, 2], table))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    node = graph_ops(step.get_concrete_function())["Twml>SparseLinearBackwardApply"]
    assert node.attr["hogwild"].b is want


def test_a_model_trains():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, N, (256, 3))
    labels = (ids.min(axis=1) < 8).astype(np.float32)
    model = tf.keras.Sequential(
        [tf.keras.Input([3], dtype="int64"), layers.SparseLinear(1, N, "sigmoid")]
    )
    model.compile(optimizers.Adagrad(0.5, concurrency="hogwild"), "binary_crossentropy")
    losses = model.fit(ids, labels, epochs=3, batch_size=32, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_the_config_keeps_the_mode_and_bad_modes_are_refused():
    optimizer = optimizers.LazyAdam(concurrency="hogwild", rounding_seed=3)
    again = optimizers.LazyAdam.from_config(optimizer.get_config())
    assert (again.concurrency, again.rounding_seed) == ("hogwild", 3)
    with pytest.raises(ValueError, match='concurrency must be "locked" or "hogwild", got \'wild\''):
        optimizers.SGD(concurrency="wild")
