"""ops.average_rows: averages of the touched rows equal averages of all rows in every step."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import ops
from twml_ops.ops import _library, stock

N = 9


def variables(dim=3, dtype=tf.float32, seed=0):
    rows = np.random.default_rng(seed).normal(size=(N, dim))
    table = tf.Variable(tf.cast(rows, dtype))
    return table, tf.Variable(tf.fill(table.shape, 7.0)), tf.Variable(tf.zeros([N], tf.int64))


def slices(ids, dtype=tf.int64):
    ids = tf.constant(ids, dtype, [len(ids)])
    return tf.IndexedSlices(tf.zeros([len(ids), 1]), ids)


def averages_before(step, table, average, steps, momentum):
    """What the state means, row by row."""
    share = np.where(steps.numpy() <= 0, 0, momentum ** np.maximum(step - steps.numpy(), 0.0))
    weights = np.float64(tf.cast(table, tf.float64))
    return share[:, None] * np.float64(average.numpy()) + (1 - share[:, None]) * weights


def train(schedule, momentum, dim=3, dtype=tf.float32, ids_dtype=tf.int64, **options):
    """The averages of `schedule`, ids for each step from 1, beside the averages of a dense pass."""
    table, average, steps = variables(dim, dtype)
    want = np.float64(tf.cast(table, tf.float64))
    rng = np.random.default_rng(1)
    for step, ids in enumerate(schedule, 1):
        gradient = slices(ids, ids_dtype)
        ops.average_rows(table, average, steps, gradient, step, momentum, **options)
        changed = table.numpy()
        for i in set(ids):
            changed[i] += rng.normal(size=dim).astype(changed.dtype)
        table.assign(changed)
        want = momentum * want + (1 - momentum) * np.float64(changed)
        got = averages_before(step + 1, table, average, steps, momentum)
        # Each touch rounds its row a few times, and earlier errors decay by the momentum.
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max(initial=1))
    return average.numpy(), steps.numpy()


SCHEDULE = [[0, 3, 3], [], [3], [8, 0], [5], [5], [5, 0], *([[1]] * 30), [3]]


@pytest.mark.parametrize("momentum", [0.0, 0.6, 0.999, 1.0])
@pytest.mark.parametrize("dim", [0, 1, 15, 16, 17])
def test_averages_equal_those_of_all_steps(dim, momentum):
    train(SCHEDULE, momentum, dim)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("ids_dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("hogwild", [False, True])
def test_all_types(dtype, ids_dtype, hogwild):
    train(SCHEDULE, 0.9, dtype=dtype, ids_dtype=ids_dtype, hogwild=hogwild)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, N - 1), max_size=6), max_size=12),
    st.sampled_from([0.0, 0.3, 0.97, 1.0]),
)
def test_any_schedule(schedule, momentum):
    train(schedule, momentum)


def test_stock_ops_have_the_same_averages():
    native = train(SCHEDULE, 0.9)
    with _library.library.override(stock.library):
        stocks = train(SCHEDULE, 0.9)
    np.testing.assert_allclose(stocks[0], native[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(stocks[1], native[1])


def test_rows_that_are_not_touched_keep_every_bit():
    table, average, steps = variables()
    ops.average_rows(table, average, steps, slices([2, 4]), 5, 0.9)
    others = [i for i in range(N) if i not in (2, 4)]
    np.testing.assert_array_equal(average.numpy()[others], 7.0)
    np.testing.assert_array_equal(steps.numpy(), np.where(np.isin(range(N), (2, 4)), 5, 0))
    np.testing.assert_array_equal(average.numpy()[[2, 4]], table.numpy()[[2, 4]])


def test_a_long_pause_is_exact():
    table, average, steps = variables(1)
    average.assign(tf.ones([N, 1]))
    steps.assign(tf.ones([N], tf.int64))
    table.assign(tf.zeros([N, 1]))
    ops.average_rows(table, average, steps, slices([0]), 1 + 10**6, 1 - 1e-6)
    assert average.numpy()[0, 0] == pytest.approx(np.exp(1e6 * np.log(1 - 1e-6)), rel=1e-6)


@pytest.mark.parametrize("override", [False, True])
def test_bad_input_changes_nothing(override):
    table, average, steps = variables()

    def check(message, **changed):
        arguments = {"average": average, "steps": steps, "gradient": slices([1])}
        arguments |= {"step": 4, "momentum": 0.5} | changed
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
            ops.average_rows(table, **arguments)
        assert steps.numpy().max() == 0
        assert average.numpy().min() == 7

    library = stock.library if override else _library.library.loaded
    with _library.library.override(library):
        check(r"ids\[1\] = 9 is out of range \[0, 9\)", gradient=slices([1, N]))
        check(r"momentum must be in \[0, 1\], got 1.5", momentum=1.5)
        if library is not stock.library:
            check("must have the shape of var", average=tf.Variable(tf.zeros([N, 4])))
            check(r"steps must be int64 \[9\]", steps=tf.Variable(tf.zeros([N + 1], tf.int64)))
            check("average must be float32", average=tf.Variable(tf.zeros([N, 3], tf.float64)))
            check("must be different variables", average=table)
