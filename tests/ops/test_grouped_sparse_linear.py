"""`grouped_sparse_linear` equals `sparse_linear` for each table."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops

DIMS = [(30, 1), (50, 8), (7, 33), (4000, 64)]


def batches(seed=0, rows=5, entries=40, ids_dtype=np.int64):
    rng = np.random.default_rng(seed)
    found = []
    for i, (n, _) in enumerate(DIMS):
        k = entries * (200 if n > 1000 else 1)  # one large piece of work among small ones
        splits = np.sort(np.concatenate([[0, k], rng.integers(0, k, rows - 1)])).astype(np.int64)
        values = None if i == 1 else tf.constant(rng.normal(size=k), tf.float32)
        found.append((tf.constant(rng.integers(0, n, k), ids_dtype), values, tf.constant(splits)))
    return found


def tables(dtypes=("float32",) * 4):
    rng = np.random.default_rng(1)
    return [
        tf.Variable(tf.cast(rng.normal(size=shape), dtype))
        for shape, dtype in zip(DIMS, dtypes, strict=True)
    ]


def results(run, weights, data):
    values = [b[1] for b in data if b[1] is not None]
    with tf.GradientTape() as tape:
        tape.watch(values)
        outputs = run()
        loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in outputs])
    found = tape.gradient(loss, [*weights, *values])
    flat = [*outputs]
    for g in found:
        flat += [g.indices, g.values] if isinstance(g, tf.IndexedSlices) else [g]
    return [t.numpy() for t in flat]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "tf.function"])
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
def test_values_and_gradients_are_bit_identical_to_single_calls(wrap, ids_dtype):
    data, weights = batches(ids_dtype=ids_dtype), tables(("float32", "bfloat16") * 2)
    grouped = wrap(lambda: ops.grouped_sparse_linear(data, weights))
    single = wrap(lambda: [ops.sparse_linear(*b, w) for b, w in zip(data, weights, strict=True)])
    for got, want in zip(
        results(grouped, weights, data), results(single, weights, data), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_features_may_share_a_table():
    first, second = batches(seed=0)[0], batches(seed=1)[0]
    (weights, *_), data = tables(), [first, second]
    got = results(lambda: ops.grouped_sparse_linear(data, [weights, weights]), [weights], data)
    want = results(lambda: [ops.sparse_linear(*b, weights) for b in data], [weights], data)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])
    for slices in (got, want):  # sums of two gradients: in either order of features
        slices[2], slices[3] = ops.sum_duplicates(slices[2], slices[3])
    np.testing.assert_array_equal(got[2], want[2])
    np.testing.assert_allclose(got[3], want[3], rtol=1e-6, atol=1e-6)


def test_mixed_id_types_are_int64():
    data, weights = batches(), tables()
    mixed = [(tf.cast(data[0][0], tf.int32), *data[0][1:]), *data[1:]]
    for got, want in zip(
        ops.grouped_sparse_linear(mixed, weights),
        ops.grouped_sparse_linear(data, weights),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_shapes_are_known_to_the_graph():
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)]
    weights = tables()[1]
    call = tf.function(
        lambda ids, splits: ops.grouped_sparse_linear([(ids, None, splits)], [weights]),
        input_signature=signature,
    )
    (shape,) = call.get_concrete_function().output_shapes
    assert shape.as_list() == [None, 8]


def test_errors_name_the_table():
    data, weights = batches(), tables()
    data[2] = (tf.constant([7], tf.int64), None, tf.constant([0, 1], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 2: ids\[0\] = 7 is out of"):
        ops.grouped_sparse_linear(data, weights)
    with pytest.raises(ValueError, match="one table for each batch, got 1 for 4"):
        ops.grouped_sparse_linear(data, weights[:1])
    with pytest.raises(ValueError, match="got 0 for 0"):
        ops.grouped_sparse_linear([], [])
    weights[1] = tf.Variable(tf.zeros([3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 1: weights must have rank 2"):
        ops.grouped_sparse_linear(data, weights)
