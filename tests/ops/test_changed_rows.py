"""The changed rows of a table: every writer marks what it changes, and no copy loses a row."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, ops, optimizers
from twml_ops.ops import _library, stock
from twml_ops.ops._tape import tf_variable

pytestmark = pytest.mark.usefixtures("fresh_keras")

N, D = 40, 3
needs_library = pytest.mark.skipif(
    not _library.is_native(), reason="only the op library marks rows"
)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def table_and_slot():
    return [tf.Variable(random(N, D)), tf.Variable(np.abs(random(N, D, seed=1)) + 0.1)]


class Follower:
    """A consumer that applies what it takes to its own copy."""

    def __init__(self, variables):
        self.variables = variables
        self.changed = ops.ChangedRows(variables)
        self.copy = None

    def take(self, keep=True):
        """Returns the ids that were taken; None for all."""
        taken = self.changed.take()
        if not keep:
            return taken.ids
        if taken.ids is None:
            self.copy = [r.numpy().copy() for r in taken.rows]
        else:
            for copy, rows in zip(self.copy, taken.rows, strict=True):
                copy[taken.ids] = rows.numpy()
        taken.keep()
        return taken.ids

    def assert_equal(self):
        for copy, variable in zip(self.copy, self.variables, strict=True):
            assert copy.tobytes() == variable.numpy().tobytes()


def follow(variables):
    follower = Follower(variables)
    assert follower.take() is None
    follower.assert_equal()
    assert follower.take().size == 0
    return follower


def apply(variables, ids, seed=0):
    gradient = tf.IndexedSlices(random(len(ids), D, seed=seed), tf.constant(ids))
    ops.apply_rows("adagrad", variables[0], variables[1:], gradient, [0.1, 0.0, 1e-7])


def batch(ids):
    ids = np.asarray(ids)
    return ids, None, np.arange(len(ids) + 1, dtype=np.int64)


def fused(variables, ids):
    """A step whose update is one op with the backward pass."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear(*batch(ids), variables[0]) ** 2)
        (gradient,) = [tape.gradient(loss, variables[0])]
        assert ops.is_sparse_linear_gradient(gradient)
        ops.apply_rows("adagrad", variables[0], variables[1:], gradient, [0.1, 0.0, 1e-7])

    step()


def sliced(variables, ids):
    apply(variables, ids)


def sliced_int32(variables, ids):
    apply(variables, np.asarray(ids, np.int32))


def in_a_function(variables, ids):
    tf.function(lambda: apply(variables, ids))()


def on_stock_ops(variables, ids):
    with _library.library.override(stock.library):
        apply(variables, ids)


def on_stock_ops_in_a_function(variables, ids):
    tf.function(lambda: on_stock_ops(variables, ids))()


def compiled_by_xla(variables, ids):
    @tf.function(jit_compile=True)
    def step(ids):
        with ops.xla_compatible():
            gradient = tf.IndexedSlices(tf.ones([len(IDS), D]), ids)
            ops.apply_rows("adagrad", variables[0], variables[1:], gradient, [0.1, 0.0, 1e-7])

    step(tf.constant(ids))


IDS = [7, 0, 39, 7, 12]
WRITERS = [
    *(fused, sliced, sliced_int32, in_a_function),
    *(on_stock_ops, on_stock_ops_in_a_function, compiled_by_xla),
]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.__name__)
def test_a_writer_marks_the_rows_that_it_changes_and_no_others(writer):
    variables = table_and_slot()
    follower = follow(variables)
    writer(variables, IDS)
    taken = follower.take()
    if taken is None:  # a writer that marks nothing was noticed just now
        assert writer in (on_stock_ops, on_stock_ops_in_a_function, compiled_by_xla)
        writer(variables, IDS)
        taken = follower.take()
    assert taken.tolist() == sorted(set(IDS))
    follower.assert_equal()
    assert follower.take().size == 0


@pytest.mark.parametrize("rule", ["sgd", "momentum", "rowwise_adagrad", "lazy_adam", "ftrl"])
def test_every_rule_marks(rule):
    optimizer = {
        "sgd": optimizers.SGD(0.1),
        "momentum": optimizers.Momentum(0.1),
        "rowwise_adagrad": optimizers.RowWiseAdagrad(0.1),
        "lazy_adam": optimizers.LazyAdam(0.1),
        "ftrl": optimizers.Ftrl(0.1),
    }[rule]
    table = tf.Variable(random(N, D))
    optimizer.build([table])
    follower = follow([table, *optimizer.slots_of(table)])
    optimizer.apply_gradients([(tf.IndexedSlices(random(5, D), tf.constant(IDS)), table)])
    assert follower.take().tolist() == sorted(set(IDS))
    follower.assert_equal()


@pytest.mark.parametrize("norm", ["max_norm", "online_standardize"])
def test_a_normalization_marks_the_features_of_the_batch_in_training_only(norm):
    shape = [N] if norm == "max_norm" else [N, 3]
    dtype = tf.float32 if norm == "max_norm" else tf.float64
    state = tf.Variable(tf.zeros(shape, dtype))
    follower = follow([state])
    getattr(ops, norm)(IDS, random(5), state, training=False)
    if _library.is_native():
        assert follower.take().size == 0
    getattr(ops, norm)(IDS, random(5), state, training=True)
    ids = follower.take()
    assert ids is None or ids.tolist() == sorted(set(IDS))
    follower.assert_equal()


def assigned(variables):
    variables[0].assign(random(N, D, seed=4))


def slot_assigned(variables):
    variables[1].assign_add(tf.ones([N, D]))


def assigned_twice(variables):
    assigned(variables)
    variables[0].assign(random(N, D, seed=5))


def assigned_in_a_function(variables):
    tf.function(lambda: assigned(variables))()


def scattered(variables):
    variables[0].scatter_update(tf.IndexedSlices(random(1, D, seed=6), [3]))


def assigned_by_handle(variables):
    tf.raw_ops.AssignVariableOp(
        resource=variables[0].handle, value=tf.constant(random(N, D, seed=7))
    )


@pytest.mark.parametrize(
    "write",
    [
        *(assigned, slot_assigned, assigned_twice, assigned_in_a_function),
        *(scattered, assigned_by_handle),
    ],
    ids=lambda w: w.__name__,
)
@pytest.mark.parametrize("step_after", [False, True])
def test_an_assignment_is_noticed(write, step_after):
    variables = table_and_slot()
    follower = follow(variables)
    apply(variables, [1])
    write(variables)
    if step_after:
        apply(variables, [2])
    follower.take()
    follower.assert_equal()
    assert follower.take().size == 0


@pytest.mark.parametrize("assignments", [1, 2, 3])
def test_assignments_are_noticed_although_an_address_returns(assignments):
    """The last of several assignments may get the memory that the first one has given back."""
    table = tf.Variable(np.zeros([1 << 14, 64], np.float32))
    follower = follow([table])
    for trial in range(6):
        for k in range(assignments):
            value = tf.fill(table.shape, float(10 * trial + k + 1))
            tf.raw_ops.AssignVariableOp(resource=table.handle, value=value)
            del value
        assert follower.take() is None
        follower.assert_equal()
        assert follower.take().size == 0


@needs_library
def test_a_table_whose_changes_are_followed_is_updated_in_place():
    def addresses():
        views = [memoryview(v.read_value()) for v in variables]
        return [np.asarray(view).__array_interface__["data"][0] for view in views]

    variables = table_and_slot()
    variables[0].assign(tf.random.normal([N, D]))  # in a buffer that nothing else holds
    variables[1].assign(tf.ones([N, D]))
    followers = [follow(variables), follow(variables)]
    before = addresses()
    for step in range(3):
        apply(variables, [step, 5])
        assert addresses() == before
        for follower in followers:
            assert follower.take().tolist() == sorted({step, 5})
            follower.assert_equal()
    held = variables[0].read_value()  # the next update writes a copy
    kept = held.numpy()
    apply(variables, [7])
    assert held.numpy().tobytes() == kept.tobytes()
    del held
    apply(variables, [8])
    assert followers[0].take().tolist() == [7, 8]
    followers[0].assert_equal()


def test_restored_values_are_noticed(tmp_path):
    variables = table_and_slot()
    saved = tf.train.Checkpoint(v=variables)
    path = saved.write(str(tmp_path / "saved"))
    apply(variables, [1, 2])
    follower = follow(variables)
    saved.read(path).assert_consumed()
    follower.take()
    follower.assert_equal()


@pytest.mark.parametrize("compared", [False, True])
def test_rows_that_are_not_kept_come_again(compared):
    variables = table_and_slot()
    if compared:
        on_stock_ops(variables, [0])
    follower = follow(variables)
    apply(variables, [3, 5])
    assert follower.take(keep=False).tolist() == [3, 5]
    apply(variables, [4])
    assert follower.take(keep=False).tolist() == [3, 4, 5]
    assert follower.take().tolist() == [3, 4, 5]
    follower.assert_equal()
    assert follower.take().size == 0


def test_keeping_an_older_copy_later_does_not_lose_rows():
    variables = table_and_slot()
    follower = follow(variables)
    apply(variables, [3])
    first = follower.changed.take()
    apply(variables, [4])
    second = follower.changed.take()
    assert second.ids.tolist() == [3, 4]
    first.keep()
    assert follower.changed.take().ids.tolist() == [4]


def test_consumers_are_independent():
    variables = table_and_slot()
    one, other = follow(variables), follow(variables[:1])
    apply(variables, [1])
    assert one.take().tolist() == [1]
    apply(variables, [2])
    assert one.take().tolist() == [2]
    assert other.take().tolist() == [1, 2]
    one.assert_equal()
    other.assert_equal()
    one.changed.close()
    apply(variables, [3])
    assert other.take().tolist() == [3]
    late = Follower(variables)
    assert late.take() is None
    with pytest.raises(ValueError, match="after close"):
        one.changed.take()


@needs_library
def test_tables_without_consumers_have_no_record():
    variables = table_and_slot()
    follower = follow(variables)
    follower.changed.close()
    apply(variables, [1])
    again = Follower(variables)
    assert again.take() is None  # a new record begins


def test_a_new_variable_does_not_get_the_record_of_a_deleted_one():
    for _ in range(20):
        variables = table_and_slot()
        follow(variables)
        del variables


def test_an_update_with_an_invalid_id_marks_at_most_the_touched_rows():
    variables = table_and_slot()
    follower = follow(variables)
    for bad in (N, -1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            apply(variables, [1, bad])
    assert set(follower.take()) <= {1}
    follower.assert_equal()


@needs_library
@pytest.mark.parametrize("concurrency", ["locked", "hogwild"])
def test_copies_beside_training_threads_lose_no_row(concurrency):
    num_rows, width, steps = 3000, 8, 150
    variables = [tf.Variable(random(num_rows, width)), tf.Variable(tf.ones([num_rows, width]))]
    follower = follow(variables)

    @tf.function
    def step(ids, rows):
        gradient = tf.IndexedSlices(rows, ids)
        ops.apply_rows(
            *("adagrad", variables[0], variables[1:], gradient, [0.1, 0.0, 1e-7]),
            hogwild=concurrency == "hogwild",
        )

    def train(seed):
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            ids = rng.integers(0, num_rows, 200)
            step(tf.constant(ids), tf.constant(random(200, width, seed=seed)))

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        follower.take()
        # The accumulator only grows, so a row of the copy is never newer than the variable's.
        assert (follower.copy[1] <= variables[1].numpy()).all()
    for t in threads:
        t.join()
    follower.take()
    follower.assert_equal()


@needs_library
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 5000])
def test_tables_of_any_size(num_rows, dtype):
    variables = [tf.Variable(tf.zeros([num_rows, 4], dtype)), tf.Variable(tf.ones([num_rows]))]
    changed = ops.ChangedRows(variables)
    taken = changed.take()
    taken.keep()
    assert [r.shape for r in taken.rows] == [(num_rows, 4), (num_rows,)]
    assert [r.dtype for r in taken.rows] == [dtype, tf.float32]
    ids = np.arange(0, num_rows, 3)
    gradient = tf.IndexedSlices(tf.ones([len(ids), 4]), tf.constant(ids))
    ops.apply_rows(
        "rowwise_adagrad", variables[0], variables[1:], gradient, [0.1, 0.0, 1e-7], seed=1
    )
    taken = changed.take()
    np.testing.assert_array_equal(taken.ids, ids)
    np.testing.assert_array_equal(
        tf.cast(taken.rows[0], tf.float32), tf.cast(tf.gather(variables[0], ids), tf.float32)
    )


def test_variables_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="got none"):
        ops.ChangedRows([])
    with pytest.raises(ValueError, match=r"of the same size, got shapes \(4, 2\), \(3,\)"):
        ops.ChangedRows([tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([3]))])
    with pytest.raises(ValueError, match=r"got shapes \(\)"):
        ops.ChangedRows([tf.Variable(1.0)])


def test_fit_and_load_weights_mark(tmp_path):
    inputs = tf.keras.Input([4], dtype="int64"), tf.keras.Input([4])
    table = layers.SparseLinear(D, N)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(table(inputs)))
    ids = np.random.default_rng(0).integers(0, 10, (32, 4))
    features = (ids, random(32, 4)), np.ones([32, 1], np.float32)
    batches = tf.data.Dataset.from_tensor_slices(features).batch(8)
    model.compile(optimizers.Adagrad(0.1), "mse")
    model.fit(batches, verbose=0)
    kernel = table.kernel
    follower = follow([tf_variable(kernel), *model.optimizer.slots_of(kernel)])
    model.fit(batches, verbose=0)
    assert follower.take().tolist() == sorted(np.unique(ids))
    follower.assert_equal()
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    model.fit(batches, verbose=0)
    model.load_weights(path)
    follower.take()
    follower.assert_equal()
