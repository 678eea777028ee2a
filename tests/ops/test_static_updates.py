"""Training steps of padded batches compiled by XLA update tables as the op library does."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops import layers, ops, optimizers

N, D, B, M, STEPS = 30, 4, 6, 5, 3
RULES = [
    optimizers.SGD,
    optimizers.Momentum,
    optimizers.Adagrad,
    optimizers.RowWiseAdagrad,
    optimizers.LazyAdam,
    optimizers.Ftrl,
]


def batches():
    """Batches with repeated ids, padding in the middle, a row of padding, and no id 0."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        ids = rng.integers(1, N // 2, (B, M))
        ids[rng.random((B, M)) < 0.3] = -1
        ids[1] = -1
        ids[2, :2] = 7
        yield tf.constant(ids, tf.int64), tf.constant(rng.normal(size=(B, M)), tf.float32)


def trained(optimizer, compiled, kernel_dtype="float32"):
    """The layer and its optimizer after STEPS steps from equal initial values."""
    layer = layers.SparseLinear(
        D,
        N,
        kernel_initializer=tf.keras.initializers.RandomUniform(-1, 1, seed=1),
        kernel_dtype=kernel_dtype,
    )
    layer.build()
    optimizer.build(layer.trainable_weights)

    def update(ids, values):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer((ids, values)) ** 2)
        gradients = tape.gradient(loss, layer.trainable_weights)
        optimizer.apply_gradients(zip(gradients, layer.trainable_weights, strict=True))

    @tf.function(jit_compile=True)
    def in_xla(ids, values):
        with ops.xla_compatible():
            update(ids, values)

    step = in_xla if compiled else tf.function(update)
    for batch in batches():
        step(*batch)
    weights = layer.trainable_weights
    slots = [s for v in weights for s in optimizer.slots_of(v)]
    return [np.asarray(tf.cast(v, tf.float32)) for v in (*weights, *slots)]


@pytest.mark.parametrize(
    "rule", on_both(RULES, RULES[0], RULES[-1]), ids=lambda rule: rule.__name__
)
def test_a_compiled_step_equals_that_of_the_library(rule):
    got, want = (trained(rule(0.1), compiled) for compiled in (True, False))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    untouched = [0, *range(N // 2, N)]  # bit for bit
    initial = tf.keras.initializers.RandomUniform(-1, 1, seed=1)((N, D)).numpy()
    np.testing.assert_array_equal(got[0][untouched], initial[untouched])


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
def test_averages_of_a_compiled_step_equal_those_of_the_library(kernel_dtype):
    def averages(compiled):
        optimizer = optimizers.Adagrad(0.1, use_ema=True, ema_momentum=0.8)
        return trained(optimizer, compiled, kernel_dtype)

    tolerance = 1e-5 if kernel_dtype == "float32" else 2**-7
    for got, want in zip(averages(True), averages(False), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_a_compiled_step_of_ftrl_at_a_rate_of_zero_changes_nothing():
    ends = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.1, 0.0])
    for got, want in zip(*(trained(optimizers.Ftrl(ends), c) for c in (True, False)), strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_clipping_sees_summed_rows():
    got, want = (trained(optimizers.SGD(0.1, clipnorm=0.5), c) for c in (True, False))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_bfloat16_tables_are_rounded_equally():
    got, want = (trained(optimizers.SGD(0.1), c, "bfloat16")[0] for c in (True, False))
    # A different last bit of a float32 sum may change the rounding by one step of bfloat16.
    np.testing.assert_allclose(got, want, rtol=2**-7, atol=1e-6)
    assert (got == want).mean() > 0.95


def test_a_batch_of_padding_changes_nothing_by_an_update():
    variable = tf.Variable(tf.ones([N, D]))
    slot = tf.Variable(tf.ones([N, D]))

    @tf.function(jit_compile=True)
    def update(ids, rows):
        with ops.xla_compatible():
            gradient = tf.IndexedSlices(rows, ids)
            ops.apply_rows("momentum", variable, [slot], gradient, [0.1, 0.0, 0.9, 0.0])

    update(tf.fill([4], tf.constant(-1, tf.int64)), tf.ones([4, D]))
    np.testing.assert_array_equal(variable, np.ones((N, D)))
    np.testing.assert_array_equal(slot, np.ones((N, D)))


def test_sums_of_duplicates_keep_their_static_shape():
    ids = tf.constant([5, -1, 3, 5, 5, -1], tf.int32)
    rows = tf.reshape(tf.range(6.0), [6, 1])

    @tf.function(jit_compile=True)
    def summed():
        with ops.xla_compatible():
            return ops.sum_duplicates(ids, rows)

    unique, sums = summed()
    np.testing.assert_array_equal(unique, [3, 5, -1, -1, -1, -1])
    np.testing.assert_array_equal(sums[:, 0], [2, 0 + 3 + 4, 0, 0, 0, 0])
