import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core, ops

EPSILON = np.float32(1e-3)
SIZES = [0, 1, 7, 8, 9, 15, 16, 17, 1000]


def reference(ids, values, max_abs, bias, training):
    """One entry at a time: (y, new max_abs, dy/dv)."""
    m = max_abs.copy()
    if training:
        for i, v in zip(ids, values, strict=True):
            if np.isfinite(v):
                m[i] = max(m[i], abs(v))
    y, scale = np.zeros_like(values), np.zeros_like(values)
    for k, (i, v) in enumerate(zip(ids, values, strict=True)):
        divisor = max(m[i], EPSILON)
        if np.isfinite(v):
            y[k] = np.clip(v / divisor, np.float32(-1), np.float32(1))
            scale[k] = np.float32(1) / divisor if abs(v) <= divisor else 0
        if bias is not None:
            y[k] += bias[i]
    return y, m, scale


def batch(size, num_ids=5, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, num_ids, size)
    values = (rng.normal(size=size) * 10.0 ** rng.integers(-5, 5, size)).astype(np.float32)
    max_abs = np.abs(rng.normal(size=num_ids)).astype(np.float32) * rng.integers(0, 2, num_ids)
    return ids, values, max_abs.astype(np.float32), rng.normal(size=num_ids).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_equals_the_reference(size, training, use_bias, dtype):
    ids, values, max_abs, bias = batch(size)
    expected, new, _ = reference(ids, values, max_abs, bias if use_bias else None, training)
    m, b = tf.Variable(max_abs.copy()), tf.Variable(bias.copy())
    y = ops.max_norm(
        tf.constant(ids, dtype), values, m, b if use_bias else None, training, epsilon=EPSILON
    )
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(m, new)
    m2 = max_abs.copy()
    y2 = core.max_norm(ids, values, m2, bias if use_bias else None, training, epsilon=EPSILON)
    np.testing.assert_array_equal(y2, expected)
    np.testing.assert_array_equal(m2, new)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(width=32))), st.booleans())
def test_results_are_finite_if_nonfinite_values_count_as_zero(entries, training):
    ids = np.array([i for i, _ in entries], np.int64)
    values = np.array([v for _, v in entries], np.float32)
    m = tf.Variable(tf.zeros(4))
    y = ops.max_norm(ids, values, m, None, training, epsilon=EPSILON, nonfinite="zero")
    expected, new, _ = reference(ids, values, np.zeros(4, np.float32), None, training)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(m, new)


def test_does_not_depend_on_the_order_of_entries():
    ids, values, max_abs, bias = batch(500)
    order = np.random.default_rng(1).permutation(500)
    m1, m2 = tf.Variable(max_abs.copy()), tf.Variable(max_abs.copy())
    y1 = ops.max_norm(ids, values, m1, tf.Variable(bias.copy()), True)
    y2 = ops.max_norm(ids[order], values[order], m2, tf.Variable(bias.copy()), True)
    np.testing.assert_array_equal(y1.numpy()[order], y2)
    np.testing.assert_array_equal(m1, m2)


def test_results_are_bit_identical_for_any_number_of_threads():
    ids, values, _, bias = batch(300_000, num_ids=50)
    results = []
    for threads in (1, 2, 7):
        m = np.zeros(50, np.float32)
        results.append((core.max_norm(ids, values, m, bias, True, num_threads=threads), m))
    for y, m in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(m, results[0][1])


def test_inference_does_not_change_max_abs():
    m = tf.Variable([1.0, 2.0])
    ops.max_norm([0, 1], [50.0, 50.0], m, None, False)
    np.testing.assert_array_equal(m, [1.0, 2.0])


def test_max_abs_is_updated_in_place_and_earlier_reads_do_not_change():
    m = tf.Variable(tf.zeros(3))
    before = m.read_value()
    ops.max_norm([1], [5.0], m, None, True)
    np.testing.assert_array_equal(before, [0, 0, 0])
    np.testing.assert_array_equal(m, [0, 5, 0])


@pytest.mark.parametrize("in_function", [False, True])
def test_gradients_are_exact(in_function):
    ids, values, max_abs, bias = batch(200)
    dy = np.random.default_rng(2).normal(size=200).astype(np.float32)
    m, b, v = tf.Variable(max_abs.copy()), tf.Variable(bias.copy()), tf.constant(values)

    def run():
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = ops.max_norm(ids, v, m, b, False, epsilon=EPSILON)
        return tape.gradient(y, [v, b], output_gradients=tf.constant(dy))

    dv, db = (tf.function(run) if in_function else run)()
    _, _, scale = reference(ids, values, max_abs, bias, False)
    np.testing.assert_array_equal(dv, dy * scale)
    assert isinstance(db, tf.IndexedSlices)
    np.testing.assert_array_equal(db.indices, np.unique(ids))
    expected = np.zeros(5)
    np.add.at(expected, ids, dy.astype(np.float64))
    np.testing.assert_allclose(db.values, expected[np.unique(ids)], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(db.dense_shape, [5])


def test_the_gradient_by_values_equals_the_numeric_gradient():
    m, b = tf.Variable([2.0, 0.5]), tf.Variable([0.1, 0.2])
    ids = [0, 1, 0, 1]
    theory, numeric = tf.test.compute_gradient(
        lambda v: ops.max_norm(ids, v, m, b, False),
        [tf.constant([0.3, 0.2, 7.0, -0.4])],
        delta=1e-2,
    )
    np.testing.assert_allclose(theory[0], numeric[0], atol=1e-3)


def test_the_largest_value_keeps_its_gradient_in_training():
    v, m = tf.constant([-4.0, 3.0]), tf.Variable([0.0])
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = ops.max_norm([0, 0], v, m, None, True)
    np.testing.assert_array_equal(tape.gradient(y, v), [0.25, 0.25])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_never_change_max_abs(value):
    m = tf.Variable([1.0, 1.0])
    v = tf.constant([4.0, value], tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"values\[1\] = .* is not finite"):
        ops.max_norm([0, 1], v, m, None, True)
    np.testing.assert_array_equal(m, [1, 1])
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = ops.max_norm([0, 1], v, m, tf.Variable([0.5, 0.5]), True, nonfinite="zero")
    np.testing.assert_array_equal(y, [1.5, 0.5])
    np.testing.assert_array_equal(m, [4, 1])
    np.testing.assert_array_equal(tape.gradient(y, v), [0.25, 0])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"ids": [0, 2]}, r"ids\[1\] = 2 is out of range \[0, 2\)"),
        ({"ids": [-1, 0]}, r"ids\[0\] = -1 is out of range"),
        ({"ids": [0]}, r"values must have 1 items|must be equal"),
        ({"bias": tf.Variable([1.0])}, "bias must have 2 items, as max_abs has, got 1"),
        ({"bias": tf.Variable(tf.zeros([0]))}, "bias must have 2 items, as max_abs has, got 0"),
        ({"bias": tf.Variable([[1.0]])}, "bias must have rank 1"),
        ({"epsilon": 0.0}, "epsilon must be a positive normal number, got 0"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"epsilon": float("nan")}, "epsilon must be"),
        ({"epsilon": float("inf")}, "epsilon must be"),
        ({"training": [True]}, "training must have rank 0"),
        ({"bias": tf.Variable([1, 2])}, "bias must be float32"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_bad_input_is_refused_and_changes_nothing(kwargs, message, training):
    m = tf.Variable([1.0, 1.0])
    arguments = {"ids": [0, 1], "values": [5.0, 5.0], "max_abs": m, "training": training}
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        ops.max_norm(**{**arguments, **kwargs})
    np.testing.assert_array_equal(m, [1, 1])


def test_one_variable_cannot_be_both_max_abs_and_bias():
    m = tf.Variable([1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be different variables"):
        ops.max_norm([0], [1.0], m, m, True)


def test_the_numpy_function_refuses_arrays_that_it_cannot_update_in_place():
    ids, values = np.array([0]), np.array([2.0], np.float32)
    with pytest.raises(ValueError, match="max_abs must be a contiguous float32 array"):
        core.max_norm(ids, values, np.zeros(1), training=True)
    frozen = np.zeros(1, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="max_abs must be writeable"):
        core.max_norm(ids, values, frozen, training=True)
    assert core.max_norm(ids, values, frozen)[0] == 1
    with pytest.raises(ValueError, match="nonfinite must be one of 'error', 'zero', got 'x'"):
        core.max_norm(ids, values, frozen, nonfinite="x")


def test_runs_in_a_function_of_unknown_shapes_with_a_tensor_for_training():
    m = tf.Variable([0.0, 0.0])
    vector = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.float32)]

    @tf.function(input_signature=[*vector, tf.TensorSpec([], tf.bool)])
    def normalize(ids, values, training):
        return ops.max_norm(ids, values, m, None, training)

    np.testing.assert_array_equal(normalize([0, 1], [2.0, 4.0], True), [1, 1])
    np.testing.assert_array_equal(normalize([0], [1.0], False), [0.5])
    np.testing.assert_array_equal(normalize([], [], True), [])
