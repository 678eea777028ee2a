import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core, ops


def reference(ids, values, moments, bias, training, clip=10.0, decay=1.0):
    """One feature at a time: (y, new moments, dy/dv)."""
    m = moments.copy()
    for i in np.unique(ids) if training else []:
        v = values[(ids == i) & np.isfinite(values)].astype(np.float64)
        if not len(v):
            continue
        n, mean, m2 = m[i] * [decay, 1, decay]
        total, delta = n + len(v), v.mean() - mean
        m[i] = [
            total,
            mean + delta * len(v) / total,
            m2 + ((v - v.mean()) ** 2).sum() + delta**2 * n * len(v) / total,
        ]
    y, scale = np.zeros(len(ids)), np.zeros(len(ids))
    for k, (i, v) in enumerate(zip(ids, values, strict=True)):
        n, mean, m2 = m[i]
        if np.isfinite(v) and n > 0:
            sd = max(np.sqrt(m2 / n), 1e-3)
            y[k] = np.clip((v - mean) / sd, -clip, clip)
            scale[k] = 1 / sd if abs((v - mean) / sd) <= clip else 0
        if bias is not None:
            y[k] += bias[i]
    return y, m, scale


def batch(size, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 5, size)
    values = (rng.normal(3, 2, size) * 10.0**ids).astype("f")
    values[rng.random(size) < 0.1] = np.nan
    moments = np.abs(rng.normal(size=(5, 3))) * [10, 1, 10] * rng.integers(0, 2, (5, 1))
    return ids, values, moments, rng.normal(size=5).astype("f")


OPTIONS = {"epsilon": 1e-3, "clip": 2.5, "decay": 0.75}


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_equals_the_reference(size, training, use_bias, dtype):
    ids, values, moments, bias = batch(size)
    b = bias if use_bias else None
    expected, new, _ = reference(ids, values, moments, b, training, 2.5, 0.75)
    m = tf.Variable(moments)
    y = ops.online_standardize(
        tf.constant(ids, dtype),
        values,
        m,
        tf.Variable(b) if use_bias else None,
        training,
        **OPTIONS,
    )
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(m, new, rtol=1e-12)
    m2 = moments.copy()
    np.testing.assert_array_equal(
        core.online_standardize(ids, values, m2, b, training, **OPTIONS), y
    )
    np.testing.assert_array_equal(m2, m)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(width=32)), max_size=40), st.integers(1, 5))
def test_moments_do_not_depend_on_the_division_into_batches(entries, parts):
    ids = np.array([i for i, _ in entries], np.int64)
    values = np.array([v for _, v in entries], "f")
    m, whole = np.zeros([3, 3]), np.zeros([3, 3])
    for part in np.array_split(np.arange(len(ids)), parts):
        y = core.online_standardize(ids[part], values[part], m, None, True, nonfinite="zero")
        assert np.all(np.isfinite(y))
        assert np.all(np.abs(y) <= 10)
    core.online_standardize(ids, values, whole, None, True, nonfinite="zero")
    np.testing.assert_array_equal(m[:, 0], whole[:, 0])
    scale = np.max(np.abs(np.where(np.isfinite(values), values, 0).astype(float)), initial=1e-100)
    np.testing.assert_allclose(m[:, 1] / scale, whole[:, 1] / scale, atol=1e-12)
    np.testing.assert_allclose(m[:, 2] / scale**2, whole[:, 2] / scale**2, atol=1e-12)


def test_moments_are_accurate_for_values_with_a_large_offset():
    values = (1e6 + np.random.default_rng(1).normal(size=100_000)).astype("f")
    m = np.zeros([1, 3])
    for part in np.array_split(values, 100):
        core.online_standardize(np.zeros(len(part), np.int64), part, m, None, True)
    np.testing.assert_allclose(m[0, 1], values.astype(float).mean(), rtol=1e-12)
    np.testing.assert_allclose(np.sqrt(m[0, 2] / m[0, 0]), values.astype(float).std(), rtol=1e-9)


def test_results_are_bit_identical_for_any_number_of_threads():
    ids, values, _, bias = batch(200_000)
    results = []
    for threads in (1, 2, 7):
        m = np.zeros([5, 3])
        y = core.online_standardize(ids, values, m, bias, True, num_threads=threads)
        results.append((y, m))
    for y, m in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(m, results[0][1])


@pytest.mark.parametrize("in_function", [False, True])
def test_gradients_are_exact(in_function):
    ids, values, moments, bias = batch(200)
    dy = np.random.default_rng(2).normal(size=200).astype("f")
    m, b, v = tf.Variable(moments), tf.Variable(bias), tf.constant(values)

    def run():
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = ops.online_standardize(ids, v, m, b, False, **OPTIONS)
        return tape.gradient(y, [v, b], output_gradients=tf.constant(dy))

    dv, db = (tf.function(run) if in_function else run)()
    _, _, scale = reference(ids, values, moments, bias, False, 2.5)
    np.testing.assert_allclose(dv, dy * scale, rtol=1e-5)
    assert isinstance(db, tf.IndexedSlices)
    expected = np.zeros(5)
    np.add.at(expected, ids, dy.astype(np.float64))
    np.testing.assert_allclose(tf.convert_to_tensor(db), expected, rtol=1e-5, atol=1e-5)


def test_earlier_reads_do_not_change():
    m = tf.Variable(np.zeros([2, 3]))
    before = m.read_value()
    ops.online_standardize([1], [5.0], m, None, True)
    np.testing.assert_array_equal(before, np.zeros([2, 3]))
    np.testing.assert_array_equal(m, [[0, 0, 0], [1, 5, 0]])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"ids": [0, 2]}, r"ids\[1\] = 2 is out of range \[0, 2\)"),
        ({"values": [1.0, np.inf]}, r"values\[1\] = inf is not finite"),
        ({"bias": tf.Variable([1.0])}, "bias must have 2 items, as moments has rows, got 1"),
        ({"epsilon": 0.0}, "epsilon must be a positive normal number, got 0"),
        ({"clip": 0.0}, "clip must be positive, got 0"),
        ({"decay": 0.0}, r"decay must be in \(0, 1\], got 0"),
        ({"decay": 1.5}, r"decay must be in \(0, 1\]"),
        ({"moments": tf.Variable(tf.zeros([2, 3]))}, "must be float64"),
        (
            {"moments": tf.Variable(tf.zeros([6], tf.float64))},
            r"moments must have the shape \[N, 3",
        ),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(kwargs, message):
    m = tf.Variable(np.ones([2, 3]))
    arguments = {"ids": [0, 1], "values": [1.0, 2.0], "moments": m, "training": True, **kwargs}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.online_standardize(**arguments)
    np.testing.assert_array_equal(m, np.ones([2, 3]))


def test_infinities_may_count_as_missing():
    m = tf.Variable(np.zeros([1, 3]))
    y = ops.online_standardize([0] * 3, [np.inf, 1.0, 3.0], m, None, True, nonfinite="zero")
    np.testing.assert_array_equal(y, [0, -1, 1])
    np.testing.assert_array_equal(m, [[2, 2, 2]])
