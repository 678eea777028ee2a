"""bfloat16 tables: float32 sums, and stochastic rounding in fused and sliced updates."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops

N, D = 40, 19
RULES = {"sgd": 0, "momentum": 1, "adagrad": 1, "rowwise_adagrad": 1, "lazy_adam": 2, "ftrl": 2}
HYPER = {
    "sgd": [0.1, 0.0],
    "momentum": [0.1, 0.01, 0.9, 1.0],
    "adagrad": [0.1, 0.01, 1e-7],
    "rowwise_adagrad": [0.1, 0.0, 1e-7],
    "lazy_adam": [0.1, 0.0, 0.9, 0.999, 1e-7],
    "ftrl": [0.1, 0.0, -0.5, 0.01, 0.01, 0.0],
}


def batch(seed=0, rows=7, entries=60):
    rng = np.random.default_rng(seed)
    splits = np.sort(np.concatenate([[0, entries], rng.integers(0, entries, rows - 1)]))
    values = rng.normal(size=entries).astype(np.float32)
    return rng.integers(0, N, entries), values, splits.astype(np.int64)


def table(seed=1, dim=D):
    weights = np.random.default_rng(seed).normal(size=(N, dim)).astype(np.float32)
    return tf.Variable(tf.cast(weights, tf.bfloat16))


def slots_for(rule):
    shape = [N] if rule == "rowwise_adagrad" else [N, D]
    return [tf.Variable(tf.fill(shape, 0.1)) for _ in range(RULES[rule])]


def as_float(weights):
    return tf.cast(weights, tf.float32).numpy()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("dim", [1, 3, 7, 8, 9, 16, 17, 64, 129, 300])
def test_the_product_equals_that_of_the_table_in_float32(dim, binary):
    weights, (ids, values, splits) = table(dim=dim), batch()
    values = None if binary else values
    got = ops.sparse_linear(ids, values, splits, weights)
    want = ops.sparse_linear(ids, values, splits, tf.cast(weights, tf.float32))
    np.testing.assert_array_equal(got, want)


def test_gradients_are_float32_and_equal_those_of_the_table_in_float32():
    weights, (ids, values, splits) = table(), batch()
    wide, values = tf.Variable(tf.cast(weights, tf.float32)), tf.constant(values)
    results = []
    for w in (weights, wide):
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(tf.sin(ops.sparse_linear(ids, values, splits, w)))
        results.append(tape.gradient(loss, [w, values]))
    (got, got_values), (want, want_values) = results
    assert got.values.dtype == tf.float32
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.values, want.values)
    np.testing.assert_array_equal(got_values, want_values)


@pytest.mark.parametrize("rule", RULES)
def test_an_update_is_the_float32_update_rounded_up_or_down(rule):
    weights, ids = table(), np.arange(0, N, 3)
    wide = tf.Variable(tf.cast(weights, tf.float32))
    rows = np.random.default_rng(2).normal(size=(len(ids), D)).astype(np.float32)
    narrow_slots, wide_slots = slots_for(rule), slots_for(rule)
    before = as_float(weights)
    for w, slots in ((weights, narrow_slots), (wide, wide_slots)):
        ops.apply_rows(rule, w, slots, tf.IndexedSlices(rows, ids), HYPER[rule], seed=5)
    got, want = as_float(weights), wide.numpy()
    bits = want.view(np.uint32)
    down = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    up = ((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    assert np.all((got == down) | (got == up))
    assert np.any(got == up)
    assert np.any(got == down)
    for a, b in zip(narrow_slots, wide_slots, strict=True):
        np.testing.assert_array_equal(a, b)
    rest = np.setdiff1d(np.arange(N), ids)
    np.testing.assert_array_equal(got[rest], before[rest])


@pytest.mark.parametrize("rule", RULES)
def test_fused_and_sliced_updates_are_bit_identical(rule):
    ids, values, splits = batch()
    out_grad = np.random.default_rng(3).normal(size=(len(splits) - 1, D)).astype(np.float32)
    results = []
    for fuse in (True, False):
        weights, slots = table(), slots_for(rule)

        @tf.function
        def step(seed, fuse=fuse, weights=weights, slots=slots):
            with tf.GradientTape() as tape:
                y = ops.sparse_linear(ids, values, splits, weights)
            gradient = tape.gradient(y, weights, output_gradients=tf.constant(out_grad))
            ops.apply_rows(rule, weights, slots, gradient, HYPER[rule], seed=seed, fuse=fuse)

        for seed in range(3):
            step(tf.constant(seed, tf.int64))
        results.append([as_float(weights), *slots])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_small_steps_are_preserved_on_average():
    weights = tf.Variable(tf.ones([1, 4096], tf.bfloat16))
    step = 2.0**-12  # a 16th of the spacing of bfloat16 below 1
    gradient = tf.IndexedSlices(tf.ones([1, 4096]), [0])
    for seed in range(64):
        ops.apply_rows("sgd", weights, [], gradient, [step, 0.0], seed=seed)
    mean = as_float(weights).mean()
    assert abs(mean - (1 - 64 * step)) < 2e-3
    nearest = tf.cast(tf.constant(1 - step), tf.bfloat16)
    assert as_float(nearest) == 1.0  # where rounding to nearest would have stayed


def test_seed_and_row_determine_the_random_bits():
    def updated(seed, rows):
        weights = tf.Variable(tf.ones([N, D], tf.bfloat16))
        gradient = tf.IndexedSlices(tf.ones([len(rows), D]), rows)
        ops.apply_rows("sgd", weights, [], gradient, [1e-3, 0.0], seed=seed)
        return as_float(weights)

    np.testing.assert_array_equal(updated(1, [2, 3]), updated(1, [2, 3]))
    np.testing.assert_array_equal(updated(1, [2, 3])[3], updated(1, [3])[3])
    assert np.any(updated(1, [2])[2] != updated(2, [2])[2])
    assert np.any(updated(1, [2, 3])[2] != updated(1, [2, 3])[3])


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 0.0, 1.5])
def test_values_that_need_no_rounding_are_unchanged(value):
    weights = tf.Variable(tf.fill([1, 33], tf.constant(value, tf.bfloat16)))
    gradient = tf.IndexedSlices(tf.zeros([1, 33]), [0])
    ops.apply_rows("sgd", weights, [], gradient, [0.1, 0.0], seed=7)
    np.testing.assert_array_equal(as_float(weights), np.full((1, 33), value, np.float32))


def test_float16_tables_and_bfloat16_slots_are_refused():
    gradient = tf.IndexedSlices(tf.zeros([1, D]), [0])
    half = tf.Variable(tf.zeros([N, D], tf.float16))
    with pytest.raises(tf.errors.InvalidArgumentError, match="var must be float32 or bfloat16"):
        ops.apply_rows("sgd", half, [], gradient, [0.1, 0.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights must be float32 or bfloat16"):
        ops.sparse_linear([0], None, [0, 1], half)
    narrow = [tf.Variable(tf.zeros([N, D], tf.bfloat16))]
    with pytest.raises(tf.errors.InvalidArgumentError, match="slots must be float32"):
        ops.apply_rows("adagrad", table(), narrow, gradient, HYPER["adagrad"])
