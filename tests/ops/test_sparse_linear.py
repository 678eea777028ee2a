"""The op `sparse_linear`, its gradients, CSR offsets and duplicate sums."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, ops

InvalidArgument = tf.errors.InvalidArgumentError
KERAS_VARIABLE = getattr(tf.keras, "Variable", None)  # Keras 3 only

# Ids repeat within rows and between them, unsorted; rows 0 and 3 are empty.
IDS = np.array([4, 1, 4, 0, 6, 1])
VALUES = np.float32([1.0, -2.0, 0.5, 3.0, 1.5, -1.0])
SPLITS = np.array([0, 0, 3, 5, 5, 6])
N, B = 7, 5
DIMS = (1, 3, 16, 17)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def dense_batch(values=VALUES):
    out = np.zeros((B, N), np.float32)
    np.add.at(out, (np.repeat(np.arange(B), np.diff(SPLITS)), IDS), values)
    return out


def dense(gradient):
    return tf.convert_to_tensor(gradient).numpy()


@pytest.mark.parametrize("id_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_output_equals_the_dense_product(dim, binary, id_type):
    w = random(N, dim)
    values = None if binary else VALUES
    x = dense_batch(np.ones_like(VALUES) if binary else VALUES)
    ids = tf.constant(IDS, id_type)
    for weights in (tf.constant(w), tf.Variable(w), w):
        got = ops.sparse_linear(ids, values, SPLITS, weights)
        assert got.dtype == tf.float32
        np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-5)
    bias = random(dim, seed=1)
    got = ops.sparse_linear(ids, values, SPLITS, w, bias)
    np.testing.assert_allclose(got, x @ w + bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        ops.sparse_linear(ids, values, SPLITS, w, tf.Variable(bias)), got, rtol=0
    )


def test_the_output_is_bit_identical_to_that_of_the_numpy_function():
    w = random(N, 33)
    want = core.sparse_linear(IDS, VALUES, SPLITS, w)
    assert ops.sparse_linear(IDS, VALUES, SPLITS, w).numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("id_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("source", ["variable", "tensor"])
@pytest.mark.parametrize("dim", DIMS)
def test_gradients_equal_those_of_the_dense_product(dim, source, id_type, graph):
    w0, dy = random(N, dim), random(B, dim, seed=2)
    w = tf.Variable(w0) if source == "variable" else tf.constant(w0)
    values, bias = tf.constant(VALUES), tf.Variable(random(dim, seed=3))
    ids = tf.constant(IDS, id_type)

    def gradients():
        with tf.GradientTape() as tape:
            tape.watch([values, w])
            y = ops.sparse_linear(ids, values, SPLITS, w, bias)
            loss = tf.reduce_sum(y * dy)
        return tape.gradient(loss, [w, values, bias])

    dw, dv, db = tf.function(gradients)() if graph else gradients()
    assert isinstance(dw, tf.IndexedSlices)
    assert dw.indices.dtype == id_type
    np.testing.assert_array_equal(dw.indices, [0, 1, 4, 6])  # unique, ascending
    np.testing.assert_allclose(dense(dw), dense_batch().T @ dy, rtol=1e-5, atol=1e-5)
    rows = np.repeat(np.arange(B), np.diff(SPLITS))
    np.testing.assert_allclose(dv, np.sum(w0[IDS] * dy[rows], axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(db, dy.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_gradients_of_a_binary_batch():
    w, dy = tf.Variable(random(N, 4)), random(B, 4, seed=2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(ops.sparse_linear(IDS, None, SPLITS, w) * dy)
    got = dense(tape.gradient(loss, w))
    np.testing.assert_allclose(got, dense_batch(np.ones(6)).T @ dy, rtol=1e-5, atol=1e-5)


def test_gradients_equal_numeric_gradients():
    w0 = random(N, 3)

    def loss_of_values(values):
        return tf.reduce_sum(ops.sparse_linear(IDS, values, SPLITS, w0) ** 2)

    def loss_of_weights(weights):
        return tf.reduce_sum(ops.sparse_linear(IDS, VALUES, SPLITS, weights) ** 2)

    for f, x in ((loss_of_values, VALUES), (loss_of_weights, w0)):
        with tf.GradientTape() as tape:
            variable = tf.constant(x)
            tape.watch(variable)
            y = f(variable)
        got = dense(tape.gradient(y, variable)).ravel()
        for i in range(x.size):
            step = np.zeros(x.size, np.float32)
            step[i] = 1 / 64  # exact in float32, and the loss is a square: no truncation error
            up, down = f(tf.constant(x + step.reshape(x.shape))), f(x - step.reshape(x.shape))
            assert float(up - down) * 32 == pytest.approx(got[i], rel=2e-3, abs=5e-3)


def test_a_gradient_in_use_does_not_change():
    w = tf.Variable(random(N, 3))
    kept, copies = [], []
    for scale in (1.0, 2.0, 3.0):  # the kernel may use a row buffer again that nobody holds
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_sum(ops.sparse_linear(IDS, VALUES, SPLITS, w))
        kept.append(tape.gradient(loss, w))
        copies.append(kept[-1].values.numpy().copy())
    for gradient, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(gradient.values, copy)
    assert not np.array_equal(copies[0], copies[1])


def test_the_gradient_by_values_is_computed_only_if_it_is_used():
    w = tf.Variable(random(N, 3))

    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear(IDS, values, SPLITS, w))
        return tf.convert_to_tensor(tape.gradient(loss, w))

    graph = step.get_concrete_function(tf.constant(VALUES)).graph
    types = [op.type for op in graph.get_operations()]
    assert "Twml>SparseLinearWeightsGrad" in types
    assert not any("ValuesGrad" in t for t in types)


@pytest.mark.skipif(KERAS_VARIABLE is None, reason="Keras 2 has no variables of its own")
def test_a_keras_variable_is_read_as_its_tf_variable():
    w = KERAS_VARIABLE(random(N, 3))
    with tf.GradientTape() as tape:
        y = ops.sparse_linear(IDS, VALUES, SPLITS, w)
        loss = tf.reduce_sum(y)
    np.testing.assert_allclose(y, dense_batch() @ w.numpy(), rtol=1e-5, atol=1e-5)
    assert isinstance(tape.gradient(loss, w.value), tf.IndexedSlices)


def keras_table():
    return tf.keras.layers.Layer().add_weight(name="w", shape=(N, 3), initializer="ones")


def plain_table():
    return tf.Variable(random(N, 3))


@pytest.mark.parametrize("make", [keras_table, plain_table])
def test_a_variable_is_read_in_place(make):
    # A tensor of the variable that exists during an update would make the update copy the table.
    w = make()

    @tf.function
    def step(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(ops.sparse_linear(IDS, values, SPLITS, w))
        return tape.gradient(loss, values)

    graph = step.get_concrete_function(tf.constant(VALUES)).graph
    assert "ReadVariableOp" not in [op.type for op in graph.get_operations()]


def test_a_variable_is_seen_by_the_tape_and_its_watch_list():
    w = tf.Variable(random(N, 3))
    frozen = tf.Variable(random(N, 3), trainable=False)
    with tf.GradientTape() as tape:
        y = ops.sparse_linear(IDS, VALUES, SPLITS, w) + ops.sparse_linear(IDS, None, SPLITS, frozen)
    assert [v.ref() for v in tape.watched_variables()] == [w.ref()]
    assert tape.gradient(y, frozen) is None


def test_a_variable_read_in_an_inner_function_is_seen_outside():
    w = tf.Variable(random(N, 3))

    @tf.function
    def inner():
        return ops.sparse_linear(IDS, VALUES, SPLITS, w)

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner())
        return tf.convert_to_tensor(tape.gradient(loss, w))

    want = dense_batch().T @ np.ones((B, 3))
    np.testing.assert_allclose(gradient(), want, rtol=1e-5)
    np.testing.assert_allclose(tf.function(gradient)(), want, rtol=1e-5)
    assert [v.ref() for v in inner.get_concrete_function().variables] == [w.ref()]


def test_unknown_shapes_are_taken_at_run_time():
    w = tf.Variable(random(N, 3))
    vector = tf.TensorSpec([None], tf.float32)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64), vector, tf.TensorSpec([None], tf.int64)]
    )
    def f(ids, values, splits):
        y = ops.sparse_linear(ids, values, splits, w)
        assert y.shape.as_list() == [None, 3]
        return y

    np.testing.assert_allclose(f(IDS, VALUES, SPLITS), dense_batch() @ w.numpy(), rtol=1e-5)
    assert f([], [], [0, 0, 0]).numpy().tolist() == [[0.0] * 3] * 2
    assert f([], [], [0]).shape == (0, 3)

    @tf.function(input_signature=[tf.TensorSpec(None, t) for t in (tf.int64, tf.float32, tf.int64)])
    def unknown_rank(ids, values, splits):
        return ops.sparse_linear(ids, values, splits, w)

    np.testing.assert_array_equal(unknown_rank(IDS, VALUES, SPLITS), f(IDS, VALUES, SPLITS))
    with pytest.raises(InvalidArgument, match=r"ids must have rank 1, got shape \[1,6\]"):
        unknown_rank(IDS[None], VALUES, SPLITS)


def test_static_shapes():
    with tf.Graph().as_default():
        w = tf.compat.v1.placeholder(tf.float32, [N, 3])
        ids = tf.compat.v1.placeholder(tf.int64, [6])
        splits = tf.compat.v1.placeholder(tf.int64, [B + 1])
        y = ops.sparse_linear(ids, None, splits, w)
        assert y.shape.as_list() == [B, 3]
        gradient = tf.gradients(y, w)[0]
        assert gradient.values.shape.as_list() == [None, 3]
        assert gradient.indices.shape.as_list() == [None]
        assert ops.row_splits_from_indices(ids, 4).shape.as_list() == [5]
        coo = tf.compat.v1.placeholder(tf.int64, [6, 2])
        assert [t.shape.as_list() for t in ops.csr_from_indices(coo, 4)] == [[6], [5]]
        rows = tf.compat.v1.placeholder(tf.float32, [6, 2, 9])
        unique, summed = ops.sum_duplicates(ids, rows)
        assert (unique.shape.as_list(), summed.shape.as_list()) == ([None], [None, 2, 9])
        unknown = tf.compat.v1.placeholder(tf.float32)
        assert ops.sparse_linear(ids, None, splits, unknown).shape.as_list() == [B, None]
        flat = tf.compat.v1.placeholder(tf.float32, [N])
        with pytest.raises(ValueError, match="rank 2"):
            ops.sparse_linear(ids, None, splits, flat)
        resource = tf.compat.v1.get_variable("w", [N, 3], use_resource=True)
        assert ops.sparse_linear(ids, None, splits, resource).shape.as_list() == [B, 3]


BAD = {
    "ids[1] = 7 is out of range [0, 7)": {"ids": [0, 7]},
    "ids[0] = -1 is out of range [0, 7)": {"ids": [-1, 7]},
    "row_splits[0] must be 0, got 1": {"row_splits": [1, 2]},
    "row_splits[1] must be the number of entries 2, got 9": {"row_splits": [0, 9]},
    "row_splits[2] = 0 after 2": {"row_splits": [0, 2, 0, 2]},
    "row_splits must not be empty": {"row_splits": np.zeros(0, np.int64)},
    "values must have 2 items, one for each id, got 3": {"values": [1.0, 2.0, 3.0]},
    "values must have rank 1, got shape [2,1]": {"values": [[1.0], [2.0]]},
    "ids must have rank 1, got shape []": {"ids": 1},
}


@pytest.mark.parametrize("source", ["variable", "tensor"])
@pytest.mark.parametrize(("message", "changes"), BAD.items(), ids=BAD)
def test_bad_input_is_refused_with_its_place(message, changes, source):
    w = random(N, 3)
    good = {"ids": [0, 1], "values": [1.0, 2.0], "row_splits": [0, 1, 2]}
    weights = tf.Variable(w) if source == "variable" else w
    with pytest.raises(InvalidArgument) as error:
        ops.sparse_linear(**{**good, **changes}, weights=weights)
    assert message in str(error.value)


def test_bad_tables_are_refused():
    for weights, message in (
        (tf.Variable(random(N)), "rank 2|rank 1"),
        (tf.Variable(np.ones((N, 3))), "weights must be float32 or bfloat16, got double"),
        (tf.constant(random(N)), "rank 2"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            ops.sparse_linear([0], [1.0], [0, 1], weights)


def test_gradients_of_bad_gradients_are_refused():
    library = ops.sparse_linear.__globals__["library"]
    ids, splits = tf.constant([0, 1], tf.int64), tf.constant([0, 2], tf.int64)
    grad = tf.ones([1, 3])
    with pytest.raises(InvalidArgument, match="grad must have one row for each of the batch's"):
        library.twml_sparse_linear_weights_grad(ids, [1.0, 1.0], splits, tf.ones([2, 3]), N, [])
    with pytest.raises(InvalidArgument, match="grad must have rank 2"):
        library.twml_sparse_linear_weights_grad(ids, [1.0, 1.0], splits, tf.ones([3]), N, [])
    with pytest.raises(InvalidArgument, match=r"ids\[1\] = 1 is out of range \[0, 1\)"):
        library.twml_sparse_linear_weights_grad(ids, [1.0, 1.0], splits, grad, 1, [])
    with pytest.raises(InvalidArgument, match="as wide as the table's, 2, got 3"):
        library.twml_sparse_linear_values_grad(ids, splits, tf.ones([N, 2]), grad)
    with pytest.raises(InvalidArgument, match="weights must have rank 2"):
        library.twml_sparse_linear_values_grad(ids, splits, tf.ones([N]), grad)


@pytest.mark.parametrize("num_rows", [0, 1, 4, 9])
def test_row_splits_from_indices(num_rows):
    rows = np.sort(np.random.default_rng(num_rows).integers(0, max(num_rows, 1), 4 * num_rows))
    want = np.searchsorted(rows, np.arange(num_rows + 1))
    np.testing.assert_array_equal(ops.row_splits_from_indices(rows, num_rows), want)
    got = tf.function(ops.row_splits_from_indices)(tf.constant(rows), tf.constant(num_rows))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("rows", "num_rows", "message"),
    [
        ([1, 0], 2, r"row_indices\[1\] = 0 after 1"),
        ([0, 2], 2, r"row_indices\[1\] = 2 is out of range \[0, 2\)"),
        ([], -1, r"num_rows must be in \[0, 2\^60\), got -1"),
        ([], 2**63 - 1, r"num_rows must be in \[0, 2\^60\)"),
        ([[0]], 1, "row_indices must have rank 1"),
    ],
)
def test_row_indices_are_checked(rows, num_rows, message):
    with pytest.raises((InvalidArgument, ValueError), match=message):
        ops.row_splits_from_indices(rows, tf.constant(num_rows, tf.int64))


@pytest.mark.parametrize("num_rows", [0, 1, 4, 9])
def test_csr_from_indices(num_rows):
    rng = np.random.default_rng(num_rows)
    rows = np.sort(rng.integers(0, max(num_rows, 1), 4 * num_rows))
    ids = rng.integers(-5, 2**60, len(rows))
    indices = np.stack([rows, ids], axis=1)
    want = [ids, np.searchsorted(rows, np.arange(num_rows + 1))]
    traced = tf.function(ops.csr_from_indices)
    for got in (
        ops.csr_from_indices(indices, num_rows),
        traced(tf.constant(indices), tf.constant(num_rows)),
    ):
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize(
    ("indices", "num_rows", "message"),
    [
        ([[1, 5], [0, 5]], 2, r"row-major order: indices\[1, 0\] = 0 after 1"),
        ([[0, 5], [2, 5]], 2, r"indices\[1, 0\] = 2 is out of range \[0, 2\)"),
        ([[-1, 5]], 2, r"indices\[0, 0\] = -1 is out of range \[0, 2\)"),
        (np.zeros([0, 2], np.int64), -1, r"num_rows must be in \[0, 2\^60\), got -1"),
        ([0, 5], 1, "indices must have rank 2"),
        ([[0, 5, 1]], 1, "indices must have 2 columns, got 3"),
    ],
)
def test_indices_are_checked(indices, num_rows, message):
    with pytest.raises((InvalidArgument, ValueError), match=message):
        ops.csr_from_indices(indices, tf.constant(num_rows, tf.int64))


@pytest.mark.parametrize("id_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("row_shape", [(), (1,), (5,), (2, 3)])
def test_duplicates_are_summed_by_ascending_id(row_shape, id_type):
    rows = random(len(IDS), *row_shape)
    unique, summed = ops.sum_duplicates(tf.constant(IDS, id_type), rows)
    assert unique.dtype == id_type
    np.testing.assert_array_equal(unique, [0, 1, 4, 6])
    want = np.zeros((N, *row_shape))
    np.add.at(want, IDS, rows)
    np.testing.assert_allclose(summed, want[[0, 1, 4, 6]], rtol=1e-6, atol=1e-6)
    none, nothing = ops.sum_duplicates(tf.zeros([0], id_type), np.zeros((0, *row_shape)))
    assert (none.shape, nothing.shape) == ((0,), (0, *row_shape))


def test_duplicates_are_checked():
    with pytest.raises(InvalidArgument, match=r"ids\[0\] = -1 is out of range"):
        ops.sum_duplicates([-1], [[1.0]])
    with pytest.raises(InvalidArgument, match="rows must have one row for each of the 2 ids"):
        ops.sum_duplicates([1, 2], [[1.0]])
    with pytest.raises(InvalidArgument, match=r"a scalar|at least rank 1"):
        ops.sum_duplicates([1], 1.0)
