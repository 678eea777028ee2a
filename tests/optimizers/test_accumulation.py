"""`gradient_accumulation_steps`: several steps with one update equal one step of a larger batch."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import distribute, layers, optimizers
from twml_ops._keras import KERAS_3

pytestmark = pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no gradient_accumulation_steps")

N, WIDTH, B, STEPS = 30, 4, 8, 3
OPTIMIZERS = ("SGD", "Momentum", "Adagrad", "RowWiseAdagrad", "LazyAdam", "Ftrl")


def data(batches=2 * STEPS, used=20):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, used, (batches * B, WIDTH))
    values = rng.uniform(-1, 1, ids.shape).astype(np.float32)
    return [ids, values], rng.normal(size=(len(ids), 1)).astype(np.float32)


def model(dtype="float32"):
    """A table, a bias of each feature (a table of one column) and dense weights."""
    tf.keras.utils.set_random_seed(2)
    inputs = [tf.keras.Input((WIDTH,), dtype=t) for t in ("int64", "float32")]
    # All values are within what it has seen, so batches do not change it.
    norm = layers.MaxNorm(N)
    hidden = layers.SparseLinear(5, N, activation="tanh", kernel_dtype=dtype)(norm(inputs))
    made = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    norm.max_abs.assign(tf.ones(N))
    return made


def fitted(optimizer, batch_size, count=2 * STEPS, dtype="float32", **options):
    made = model(dtype)
    made.compile(optimizer, "mse", **options)
    inputs, labels = data(count)
    made.fit(inputs, labels, batch_size=batch_size, shuffle=False, verbose=0)
    return made


def assert_same_weights(one, other, atol=1e-6):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=1e-5, atol=atol)


@pytest.mark.parametrize(
    ("name", "eagerly"), [*((name, False) for name in OPTIMIZERS), ("LazyAdam", True)]
)
def test_accumulated_steps_equal_one_step_of_the_joined_batch(name, eagerly):
    kind = getattr(optimizers, name)
    small = fitted(kind(0.05, gradient_accumulation_steps=STEPS), B, run_eagerly=eagerly)
    assert_same_weights(small, fitted(kind(0.05), STEPS * B))
    assert int(small.optimizer.iterations) == 2


@pytest.mark.parametrize(
    "options",
    [{"clipnorm": 0.01}, {"global_clipnorm": 0.01, "weight_decay": 0.1}],
    ids=lambda o: next(iter(o)),
)
def test_clipping_and_decay_are_applied_once_per_update(options):
    small = fitted(optimizers.Adagrad(0.1, gradient_accumulation_steps=STEPS, **options), B)
    assert_same_weights(small, fitted(optimizers.Adagrad(0.1, **options), STEPS * B))


def test_steps_per_execution_accumulate_too():
    accumulating = lambda: optimizers.LazyAdam(0.1, gradient_accumulation_steps=STEPS)  # noqa: E731
    together = fitted(accumulating(), B, steps_per_execution=4)
    assert_same_weights(together, fitted(accumulating(), B))


def test_a_bfloat16_table_accumulates_in_float32():
    small = fitted(optimizers.SGD(0.5, gradient_accumulation_steps=STEPS), B, dtype="bfloat16")
    assert_same_weights(small, fitted(optimizers.SGD(0.5), STEPS * B, dtype="bfloat16"), 2e-3)


def test_loss_scaling_accumulates_finite_gradients_only():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    inner = optimizers.Adagrad(0.1, gradient_accumulation_steps=STEPS)
    made = fitted(optimizers.LossScaleOptimizer(inner), B)
    assert int(inner.iterations) == 2
    tf.keras.mixed_precision.set_global_policy("float32")
    assert_same_weights(made, fitted(optimizers.Adagrad(0.1), STEPS * B), 2e-3)


def test_between_updates_nothing_changes():
    start = model().get_weights()
    waiting = fitted(optimizers.Momentum(0.1, gradient_accumulation_steps=STEPS), B, STEPS - 1)
    for now, then in zip(waiting.get_weights(), start, strict=True):
        np.testing.assert_array_equal(now, then)


def test_rows_without_a_gradient_are_bit_identical_and_no_second_table_is_kept():
    made = fitted(optimizers.SGD(0.1, gradient_accumulation_steps=STEPS), B)
    for now, then in zip(made.get_weights(), model().get_weights(), strict=True):
        if len(now) == N:
            np.testing.assert_array_equal(now[20:], then[20:])
    assert max(np.size(v) for v in made.optimizer.variables) == 1


def test_a_file_written_between_two_updates_loads_with_its_slots(tmp_path):
    made = fitted(optimizers.Momentum(0.1, gradient_accumulation_steps=STEPS), B, STEPS + 1)
    made.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras")
    for a, b in zip(made.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    inputs, labels = data(STEPS - 1)
    again.fit(inputs, labels, batch_size=B, verbose=0)
    assert int(again.optimizer.iterations) == 2
    assert np.abs(again.get_weights()[2] - made.get_weights()[2]).max() > 0


def test_dense_gradients_of_a_table_join_its_sparse_ones():
    table = tf.Variable(tf.zeros([4, 2]))
    optimizer = optimizers.SGD(1.0, gradient_accumulation_steps=2)
    sparse = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 3]), tf.constant([4, 2]))
    optimizer.apply_gradients([(sparse, table)])
    optimizer.apply_gradients([(tf.ones([4, 2]), table)])
    np.testing.assert_array_equal(table, -np.float32([[0.5] * 2] * 3 + [[1.5] * 2]))


def test_among_replicas_it_is_refused():
    with distribute.mirrored_strategy(2).scope():
        made = model()
        made.compile(optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    inputs, labels = data()
    with pytest.raises(ValueError, match="gradient_accumulation_steps with sparse .* replicas"):
        made.fit(inputs, labels, batch_size=B, verbose=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_gradient_before_an_update_without_one_is_dropped_as_by_keras(sparse, compiled):
    """In functions, too, of which the one that updates has never seen the gradient."""

    def train(optimizer):
        a, b = (tf.keras.Variable(np.ones((2, 1), np.float32), name=n) for n in "ab")
        optimizer.build([a, b])
        row = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1]), tf.constant([2, 1]))
        of_a = (
            row if sparse and isinstance(optimizer, optimizers.SGD) else tf.constant([[0.0], [1]])
        )
        one = tf.ones([2, 1])

        def both():
            optimizer.apply_gradients([(of_a, a), (one, b)])

        def only_b():
            optimizer.apply_gradients([(None, a), (one, b)])

        both, only_b = (tf.function(f) if compiled else f for f in (both, only_b))
        if compiled:
            only_b.get_concrete_function()  # knows no accumulator of a
        for step in (both, only_b, both, both):  # an update after each two
            step()
        return a.numpy()

    want = train(tf.keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    got = train(optimizers.SGD(0.1, gradient_accumulation_steps=2))
    np.testing.assert_allclose(got, want, rtol=1e-6)
