"""Packed messages of entries: round trips and their format."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core, ops, optimizers
from twml_ops.ops import _library
from twml_ops.ops.stock import library as stock

needs_library = pytest.mark.skipif(not _library.is_native(), reason="no op library to compare with")


def batch(seed, lengths, dim, dtype=np.int64):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, dim, sum(lengths)).astype(dtype)
    splits = np.cumsum([0, *lengths]).astype(np.int64)
    return ids, rng.normal(size=len(ids)).astype(np.float32), splits


def part_of(ids, values, splits, p, parts):
    """The part of a batch, computed entry by entry."""
    rows = [range(a, b) for a, b in itertools.pairwise(splits)]
    mine = [[k for k in row if ids[k] % parts == p] for row in rows]
    flat = np.array(list(itertools.chain(*mine)), np.int64)
    return ids[flat] // parts, values[flat], np.cumsum([0, *map(len, mine)])


SIZES = [(), (0,), (1,), (0, 3, 0), (7, 64, 65, 0, 1)]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("lengths", SIZES)
@pytest.mark.parametrize("dim", [1, 2, 300, 2**31 - 1, 2**40])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_every_part_equals_the_reference(parts, lengths, dim, dtype):
    if dim > 2**31 and dtype == np.int32:
        pytest.skip("no such ids")
    ids, values, splits = batch(parts, lengths, dim, dtype)
    for binary in (False, True):
        given_values = None if binary else values
        messages = ops.pack_entries(ids, given_values, splits, dim, parts)
        assert len(messages) == parts
        for p, message in enumerate(messages):
            want_ids, want_values, want_splits = part_of(ids, values, splits, p, parts)
            got_ids, got_values, got_splits = ops.unpack_entries(message)
            np.testing.assert_array_equal(got_ids, want_ids)
            np.testing.assert_array_equal(got_values, [] if binary else want_values)
            np.testing.assert_array_equal(got_splits, want_splits)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 90), max_size=12), st.integers(1, 2**62), st.integers(1, 9),
    st.integers(1, 50), st.booleans(),
)  # fmt: skip
def test_round_trip(lengths, dim, parts, distinct, deduplicate):
    ids, values, splits = batch(0, lengths, min(dim, distinct))
    messages = ops.pack_entries(ids, values, splits, dim, parts, deduplicate)
    for p, message in enumerate(messages):
        for got, want in zip(
            ops.unpack_entries(message), part_of(ids, values, splits, p, parts), strict=True
        ):
            np.testing.assert_array_equal(got, want)


def test_a_message_has_the_bytes_that_the_plan_counts():
    ids, values, splits = batch(0, [200] * 100, 2**18)
    k, plain = len(ids), 32 + 8 * 3
    bits = lambda n: -(-n // 64) * 8  # noqa: E731
    (message,) = ops.pack_entries(ids, None, splits, 2**18)
    assert message.shape[0] == 32 + 16 + bits(18 * k) + bits(8 * 100)
    (message,) = ops.pack_entries(ids, values, splits, 2**18)
    assert message.shape[0] == 32 + 16 + bits(18 * k) + bits(8 * 100) + 4 * k
    (message,) = ops.pack_entries(ids % 100 * 9, None, splits, 2**18)  # 8 ids between two
    assert message.shape[0] == plain + bits(4 * 100) + bits(7 * k) + bits(8 * 100)
    (message,) = ops.pack_entries(ids % 100, None, splits, 2**18, deduplicate=False)
    assert message.shape[0] == 32 + 16 + bits(18 * k) + bits(8 * 100)


@needs_library
@pytest.mark.parametrize("distinct", [1, 5, 2**20])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("lengths", [(0,), (7, 64, 65, 0, 1)])
def test_stock_ops_write_and_read_the_same_bytes(lengths, distinct, binary):
    ids, values, splits = batch(1, lengths, distinct)
    values = None if binary else values
    native = ops.pack_entries(ids, values, splits, 2**20, 2)
    with _library.library.override(stock):
        written = ops.pack_entries(ids, values, splits, 2**20, 2)
    for a, b in zip(native, written, strict=True):
        np.testing.assert_array_equal(a, b)
        want = ops.unpack_entries(a, tf.int32)
        with _library.library.override(stock):
            got = ops.unpack_entries(a, tf.int32)
        for x, y in zip(want, got, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def test_stock_ops_work_in_a_graph():
    ids, values, splits = batch(1, (7, 64, 65, 0, 1), 5)
    with _library.library.override(stock):
        (message,) = tf.function(
            lambda: ops.pack_entries(ids, values, splits, 2**20), autograph=False
        )()
        got = tf.function(lambda m: ops.unpack_entries(m), autograph=False)(message)
    for x, y in zip(got, (ids, values, splits), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("through", ["library", "stock"])
def test_a_bad_batch_is_refused_by_name(through):
    other = stock if through == "stock" else _library.library.loaded
    with _library.library.override(other):
        for ids, message in (
            ([1, 9], r"ids\[1\] = 9 is out of range \[0, 9\)"),
            ([-1, 0], r"= -1"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                ops.pack_entries(tf.constant(ids, tf.int64), None, [0, 2], 9, 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match="row_splits"):
            ops.pack_entries([1, 2], None, [0, 3], 9, 2)
        (wide,) = ops.pack_entries([2**40], None, [0, 1], 2**41)
        with pytest.raises(tf.errors.InvalidArgumentError, match="32-bit integers cannot hold"):
            ops.unpack_entries(wide, tf.int32)


@pytest.mark.parametrize("through", ["library", "stock"])
def test_any_bytes_are_unpacked_or_refused(through):
    ids, values, splits = batch(2, [3, 0, 9], 5)
    (good,) = ops.pack_entries(ids, values, splits, 300)
    good = good.numpy()
    rng = np.random.default_rng(0)
    other = stock if through == "stock" else _library.library.loaded
    refused = 0
    with _library.library.override(other):
        for n in range(0, len(good), 7):
            with pytest.raises(tf.errors.InvalidArgumentError, match="packed"):
                ops.unpack_entries(good[:n])
        for _ in range(150 if through == "library" else 20):
            bad = good.copy()
            bad[rng.integers(0, 60, 3)] = rng.integers(0, 256, 3)
            try:
                got_ids, got_values, got_splits = ops.unpack_entries(bad)
            except tf.errors.InvalidArgumentError:
                refused += 1
            else:
                assert got_splits[-1] == len(got_ids) == len(got_values)
    assert refused > 0


def test_ids_are_packed_as_those_of_a_binary_batch_of_one_row():
    ids = np.random.default_rng(0).integers(0, 1000, 77)
    [message] = ops.pack_entries(ids, None, [0, 77], 1000, deduplicate=False)
    np.testing.assert_array_equal(core.pack_ids(ids, input_dim=1000), message)


def op_types(function):
    return {op.type for op in function.get_concrete_function().graph.get_operations()}


@needs_library
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("distinct", [1, 7, 299])  # the last ones are too many to be sent once
def test_an_update_from_a_message_has_the_bits_of_one_from_the_batch(dtype, binary, distinct):
    rows, units, lengths = 300, 5, (7, 64, 65, 0, 1, 200)
    ids, values, splits = batch(1, lengths, distinct)
    ids = ids * (rows // (distinct + 1))
    values = None if binary else values
    gradient = tf.random.stateless_normal([len(lengths), units], [1, 2])

    def trained(message):
        table = tf.Variable(tf.ones([rows, units]))
        adagrad = optimizers.Adagrad(0.1)
        adagrad.build([table])
        unpacked = (ids, np.float32([]) if binary else values, splits)

        @tf.function
        def step():
            entries = [tf.convert_to_tensor(t) for t in unpacked]
            if message is not None:
                entries = ops.unpack_entries(message, dtype)
            shape = tf.shape(table, out_type=tf.int64)
            slices = ops.weights_grad(*entries, gradient, shape, binary)
            adagrad.apply_gradients([(slices, table)])

        step()
        return table.numpy(), op_types(step)

    [message] = ops.pack_entries(ids, values, splits, rows)
    want, ordinary = trained(None)
    got, from_message = trained(message)
    assert got.tobytes() == want.tobytes()
    assert "Twml>GroupBatch" in ordinary
    assert "Twml>GroupPackedEntries" in from_message
    assert "Twml>GroupBatch" not in from_message


@needs_library
def test_any_bytes_are_grouped_or_refused():
    ids, values, splits = batch(2, [3, 0, 9, 80], 5)
    [good] = ops.pack_entries(ids, values, splits, 300)
    table = tf.Variable(tf.zeros([300, 2]))
    gradient = tf.ones([4, 2])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.uint8)])
    def rows_of(message):
        entries = ops.unpack_entries(message)
        shape = tf.constant([300, 2], tf.int64)
        slices = ops.weights_grad(*entries, gradient, shape, False, table.handle)
        return entries[0], slices.indices

    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        bad = good.numpy()
        bad[rng.integers(0, 90, 2)] = rng.integers(0, 256, 2)
        try:
            entries, rows = rows_of(bad)
        except tf.errors.InvalidArgumentError:
            refused += 1
        else:
            np.testing.assert_array_equal(rows, np.unique(entries))
    assert 0 < refused < 150


@needs_library
def test_groups_of_a_message_are_refused_by_name():
    group = _library.library.twml_group_packed_entries
    ids, values, splits = batch(2, [3, 0, 9, 80], 5)
    [message] = ops.pack_entries(ids, values, splits, 300)
    for rows, binary, expected in (
        (4, False, r"ids\[4\] = 4 is out of range \[0, 4\)"),
        (300, True, "packed must be the message of a binary batch"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            group(message, tf.constant(rows, tf.int64), T=tf.int64, binary=binary)


@pytest.mark.parametrize("through", ["library", "stock"])
def test_distinct_ids_must_fit_into_the_type_of_ids(through):
    ids = np.repeat([5, 2**30, 2**31], 50)
    [message] = ops.pack_entries(ids, None, [0, 150], 2**31 + 1)
    other = stock if through == "stock" else _library.library.loaded
    with _library.library.override(other):
        np.testing.assert_array_equal(ops.unpack_entries(message)[0], ids)
        with pytest.raises(tf.errors.InvalidArgumentError, match="32-bit integers cannot hold"):
            ops.unpack_entries(message, tf.int32)


def batches_of(seed, sizes, dtype, binary):
    """Batches and gradients of mean losses of `sizes` examples, some without entries."""
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        lengths = rng.integers(0, 4, size)
        entries = int(lengths.sum())
        values = rng.normal(size=0 if binary else entries).astype(np.float32)
        ids = rng.integers(0, 50, entries).astype(dtype)
        found.append((ids, values, np.concatenate([[0], np.cumsum(lengths)])))
    return found, [rng.normal(size=(size, 3)).astype(np.float32) for size in sizes]


@needs_library
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("sizes", [[4], [0], [3, 5], [0, 2, 0, 7], [1] * 9, [0, 0]])
def test_joined_batches_are_one_batch_of_all_examples(dtype, binary, sizes):
    batches, gradients = batches_of(1, sizes, dtype, binary)

    def joined(*tensors):
        whole = [tensors[i : i + 3] for i in range(0, 3 * len(sizes), 3)]
        return ops.join_batches(whole, tensors[3 * len(sizes) :])

    flat = [tf.convert_to_tensor(t) for t in (*itertools.chain(*batches), *gradients)]
    for call in (joined, tf.function(joined, autograph=False)):
        ids, values, row_splits, gradient = (t.numpy() for t in call(*flat))
        assert ids.dtype == dtype
        np.testing.assert_array_equal(ids, np.concatenate([b[0] for b in batches]))
        np.testing.assert_array_equal(values, np.concatenate([b[1] for b in batches]))
        lengths = np.concatenate([np.diff(b[2]) for b in batches])
        np.testing.assert_array_equal(row_splits, np.concatenate([[0], np.cumsum(lengths)]))
        total = np.float32(sum(sizes))
        want = [g * (np.float32(len(g)) / total) for g in gradients if len(g)]
        assert gradient.tobytes() == np.concatenate([np.zeros((0, 3), np.float32), *want]).tobytes()
    without = ops.join_batches(batches)
    assert without[3].shape == (0, 0)
    np.testing.assert_array_equal(without[0], ids)


@needs_library
def test_batches_that_cannot_be_joined_are_refused():
    [batch_a, batch_b], [gradient_a, gradient_b] = batches_of(2, [2, 3], np.int64, False)
    for batches, gradients, message in [
        ([batch_a, batch_b], [gradient_a], "gradients must be 0 or 2 tensors, got 1"),
        ([batch_a, batch_b], [gradient_a, gradient_b[:, :2]], "columns, got 3 and 2"),
        ([batch_a, batch_b], [gradient_a, gradient_b[0]], "gradients must have rank 2"),
        ([batch_a, (batch_b[0][:, np.newaxis], *batch_b[1:])], (), "ids must have rank 1"),
        ([batch_a, (batch_b[0], batch_b[1], batch_b[2][:0])], (), "row_splits must"),
    ]:
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
            ops.join_batches(batches, gradients)
