"""Hogwild: steps from several threads update one table without waiting for each other."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, ops, optimizers
from twml_ops.ops._library import is_native

N, D, THREADS, STEPS = 64, 6, 4, 25

native = pytest.mark.skipif(not is_native(), reason="stock ops have no locks of ours")


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


def test_a_table_that_a_reader_holds_is_copied_before_it_is_updated():
    table = tf.Variable(tf.zeros([N, D]))
    held = table.read_value()
    train("hogwild", np.arange(N).reshape(THREADS, -1), table)
    np.testing.assert_array_equal(held, np.zeros((N, D)))
    np.testing.assert_array_equal(table, np.full((N, D), -0.5 * STEPS, np.float32))


def address(variable):
    """Where the variable's buffer lies, through a NumPy view of it while it is read in place."""
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
    return variable.read_value()._numpy().__array_interface__["data"][0]


@native
@pytest.mark.parametrize("num_slots", [0, 2])
def test_values_that_readers_hold_neither_change_nor_move_a_hogwild_table(num_slots):
    variables = [tf.Variable(tf.zeros([N, D])) for _ in range(1 + num_slots)]
    table, slots = variables[0], variables[1:]
    rule, hyper = ("lazy_adam", [1.0, 0.0, 0.9, 0.999, 1e-7]) if slots else ("sgd", [1.0, 0.0])

    def update():
        gradient = tf.IndexedSlices(tf.ones([1, D]), tf.constant([3], tf.int64))
        ops.apply_rows(rule, table, slots, gradient, hyper, hogwild=True)

    update()
    before = [address(v) for v in variables]
    update()  # after address() has ended the mode
    held = [v.read_value() for v in variables]
    contents = [h.numpy().copy() for h in held]
    for _ in range(3):
        update()
        held += [v.read_value() for v in variables]
    for h, content in zip(held, contents, strict=False):
        np.testing.assert_array_equal(h, content)
    assert [address(v) for v in variables] == before


@native
def test_hogwild_updates_beside_dense_reads_locked_updates_and_checkpoints_lose_nothing():
    """Every thread updates rows of its own, so the sums are known."""
    rows, dim = 4000, 16
    table = tf.Variable(tf.zeros([rows, dim]))

    def updates(ids, times, hogwild=True):
        gradient = tf.IndexedSlices(tf.ones([len(ids), dim]), tf.constant(ids, tf.int64))

        @tf.function
        def run():
            for _ in range(times):
                ops.apply_rows("sgd", table, [], gradient, [1.0, 0.0], hogwild=hogwild)

        return run.get_concrete_function()

    @tf.function
    def read():
        seen = tf.constant(0)
        for _ in range(16):
            with tf.control_dependencies([seen]):
                value = tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float32)
                seen = tf.size(value[:1, :1])
        return seen

    @tf.function
    def save():
        tf.raw_ops.DisableCopyOnRead(resource=table.handle)  # as checkpoints do
        return tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float32)[0, 0]

    # (rows, updates in a call, calls, hogwild): long updates are under way while short ones begin.
    writers = [
        (range(3, rows), 4, 120, True),
        (range(1), 64, 200, True),
        (range(1, 2), 64, 200, True),
        (range(2, 3), 1, 20, False),
    ]
    calls = [(updates(ids, times, hogwild), n) for ids, times, n, hogwild in writers]
    calls += [(read.get_concrete_function(), 200), (save.get_concrete_function(), 9)]
    threads = [
        threading.Thread(target=lambda call=call, n=n: [call() for _ in range(n)])
        for call, n in calls
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    want = np.zeros([rows, dim], np.float32)
    for ids, times, n, _ in writers:
        want[ids.start : ids.stop] = -times * n
    np.testing.assert_array_equal(table, want)


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
