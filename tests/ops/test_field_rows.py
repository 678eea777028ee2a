"""`field_rows` against its definition, and products with its rows against other products."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pairwise import pairwise
from twml_ops import ops
from twml_ops.ops._library import is_native

INT64 = np.iinfo(np.int64)
SIZES = [2, 3, 66, 2, 513, 9, 4]
native = pytest.mark.skipif(not is_native(), reason="stock ops group by themselves")


def reference(ids, sizes, first_row=0):
    starts = first_row + np.cumsum([0, *sizes[:-1]])
    rows = [
        [
            start + (0 if i < 0 else 1 + i % (n - 1))
            for i, n, start in zip(row, sizes, starts, strict=True)
        ]
        for row in ids.tolist()
    ]
    return np.array(rows, np.int64).reshape(-1)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("height", [0, 1, 70])
def test_rows_are_those_of_the_definition(wrap, dtype, pooled, height):
    ids = np.random.default_rng(height).integers(-2, 2000, (height, len(SIZES))).astype(dtype)
    rows, splits = wrap(lambda x: ops.field_rows(x, SIZES, first_row=5, pooled=pooled))(ids)
    assert rows.dtype == splits.dtype == tf.int64
    np.testing.assert_array_equal(rows, reference(ids, SIZES, 5))
    step = len(SIZES) if pooled else 1
    np.testing.assert_array_equal(splits, np.arange(0, ids.size + 1, step))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_ids_of_any_fields(data):
    sizes = data.draw(st.lists(st.integers(2, 2**40), min_size=1, max_size=4))
    edges = st.sampled_from(
        [INT64.min, INT64.max, -1, 0, *(n + d for n in sizes for d in (-2, -1))]
    )
    number = st.one_of(edges, st.integers(INT64.min, INT64.max))
    row = st.lists(number, min_size=len(sizes), max_size=len(sizes))
    ids = np.array(data.draw(st.lists(row, min_size=1, max_size=5)), np.int64)
    np.testing.assert_array_equal(ops.field_rows(ids, sizes)[0], reference(ids, sizes))


def test_batches_of_other_sizes_get_their_own_row_splits():
    call = tf.function(
        lambda x: ops.field_rows(x, [3, 4])[1], input_signature=[tf.TensorSpec([None, 2], tf.int64)]
    )
    kept = [call(np.zeros((height, 2), np.int64)) for height in (3, 3, 1, 0, 3)]
    assert [splits.shape[0] for splits in kept] == [7, 7, 3, 1, 7]
    for splits in kept:
        np.testing.assert_array_equal(splits, np.arange(splits.shape[0]))


@native
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("height", [None, 5])
def test_shapes_follow_from_those_of_the_ids(pooled, height):
    call = tf.function(lambda x: ops.field_rows(x, SIZES, pooled=pooled))
    got = call.get_concrete_function(tf.TensorSpec([height, len(SIZES)], tf.int64))
    expected = [[None], [None]] if height is None else [[35], [6 if pooled else 36]]
    assert [s.as_list() for s in got.output_shapes] == expected


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (np.zeros((2, 3), np.int64), {"num_rows": [4, 4]}, r"ids must be \[B, 2\], got \(2, 3\)"),
        (np.zeros(4, np.int64), {"num_rows": [4, 4]}, r"ids must be \[B, 2\], got \(4,\)"),
        (np.zeros((2, 2), np.int64), {"num_rows": [4, 1]}, "num_rows must be integers of at least"),
        (np.zeros((2, 0), np.int64), {"num_rows": []}, "num_rows must be integers of at least"),
        (np.zeros((2, 1), np.int64), {"num_rows": [2], "first_row": -1}, "first_row not negative"),
    ],
)
def test_bad_arguments_are_named(ids, options, message):
    with pytest.raises(ValueError, match=message):
        ops.field_rows(ids, **options)


@native
def test_shapes_that_are_not_known_are_checked_when_it_runs():
    call = tf.function(
        lambda x: ops.field_rows(x, [4, 4])[0], input_signature=[tf.TensorSpec(None, tf.int64)]
    )
    for shape, message in (((2, 3), "a column for each of the 2 fields, got 3"), ((2,), "rank 2")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call(np.zeros(shape, np.int64))


def trained(rule, dtype, units, pooled, declared, fused, sizes, height):
    """The table and slots after steps on rows of fields, grouped by field or sorted."""
    rng = np.random.default_rng(7)
    table = tf.Variable(tf.cast(rng.normal(size=(sum(sizes), units)), dtype))
    slot = tf.Variable(tf.fill(table.shape, 0.1))
    target = tf.constant(rng.normal(size=units), tf.float32)

    @tf.function
    def step(ids):
        rows, splits = ops.field_rows(ids, sizes, pooled=pooled)
        if not declared:
            rows, splits = tf.identity(rows), tf.identity(splits)
        with tf.GradientTape() as tape:
            out = ops.sparse_linear(rows, None, splits, table)
            loss = tf.reduce_sum((out - target) ** 2)
        gradient = tape.gradient(loss, table)
        slots, hyper = ([], [0.1, 0.0]) if rule == "sgd" else ([slot], [0.1, 0.0, 1e-7])
        ops.apply_rows(rule, table, slots, gradient, hyper, fuse=fused)
        return out, gradient.indices, gradient.values

    results = []
    for _ in range(2):
        ids = rng.zipf(1.3, (height, len(sizes))) % 3000 - 1
        results += step(tf.constant(ids, tf.int64))
    starts = [
        op.get_attr("field_starts")
        for op in step.get_concrete_function(tf.constant(ids, tf.int64)).graph.get_operations()
        if op.type == "Twml>GroupBatch"
    ]
    assert all(bool(s) == declared for s in starts)
    assert len(starts) == int(is_native())
    return [x.numpy() for x in (*results, table, slot)]


@native
@pairwise(
    weights=[("adagrad", "float32", 16), ("adagrad", "bfloat16", 16), ("sgd", "float32", 5)],
    pooled=[False, True],
    fused=[False, True],
)
def test_training_has_the_bits_of_sorted_entries(weights, pooled, fused):
    rule, dtype, units = weights
    for sizes, height in ((SIZES, 200), ([3000], 1), ([70, 2**16], 300)):
        by_field, sorted_ = (
            trained(rule, dtype, units, pooled, declared, fused, sizes, height)
            for declared in (True, False)
        )
        for a, b in zip(by_field, sorted_, strict=True):
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("units", [1, 3, 4, 8, 15, 16, 17, 32, 128, 200])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_read_as_other_products_read_them(units, dtype):
    rng = np.random.default_rng(units)
    weights = rng.normal(size=(50, units)).astype(np.float32)
    weights[:3] = [[-0.0], [np.inf], [np.nan]]
    table = tf.Variable(tf.cast(weights, dtype))
    ids = np.concatenate([[0, 1, 2], rng.integers(0, 50, 200)])
    alone = ops.sparse_linear(ids, None, np.arange(ids.size + 1), table)
    # The same rows beside an empty one, which keeps them from being copied.
    beside = ops.sparse_linear(ids, None, np.append(np.arange(ids.size + 1), ids.size), table)
    np.testing.assert_array_equal(alone.numpy().view(np.int32), beside[:-1].numpy().view(np.int32))
    np.testing.assert_array_equal(alone, tf.cast(tf.gather(table, ids), tf.float32))


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_rows_out_of_range_are_named_when_they_are_copied(bad):
    table = tf.Variable(tf.zeros([50, 16]))
    ids = np.arange(300) % 50
    ids[[123, 200]] = bad
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"ids\[123\] = {bad} is out of range"
    ):
        ops.sparse_linear(ids, None, np.arange(301), table)


def test_row_splits_are_checked_when_there_are_as_many_rows_as_entries():
    table = tf.Variable(tf.zeros([50, 16]))
    for splits in ([0, 2, 1, 3], [0, 1, 2, 4], [1, 1, 2, 3]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="row_splits"):
            ops.sparse_linear([1, 2, 3], None, splits, table)
    out = ops.sparse_linear([1, 2, 3], None, [0, 0, 3, 3], tf.ones([50, 2]))
    np.testing.assert_array_equal(out, [[0, 0], [3, 3], [0, 0]])


def test_second_derivatives_pass_through_the_rows():
    table = tf.Variable(np.random.default_rng(0).normal(size=(sum(SIZES), 3)), dtype=tf.float32)
    ids = tf.constant(np.random.default_rng(1).integers(-1, 9, (20, len(SIZES))))
    rows, splits = ops.field_rows(ids, SIZES)

    @tf.function
    def second():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(ops.sparse_linear(rows, None, splits, table) ** 3)
            first = tf.reduce_sum(tf.convert_to_tensor(inner.gradient(loss, table)) ** 2)
        return tf.convert_to_tensor(outer.gradient(first, table))

    dense = tf.Variable(table)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(tf.gather(dense, rows) ** 3)
        first = tf.reduce_sum(tf.convert_to_tensor(inner.gradient(loss, dense)) ** 2)
    expected = tf.convert_to_tensor(outer.gradient(first, dense))
    np.testing.assert_allclose(second(), expected, rtol=1e-4, atol=1e-4)
