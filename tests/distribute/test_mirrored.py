"""Replicas of a MirroredStrategy train as one replica does on the concatenated batch."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tests.distribute.conftest import copies, ragged_batch, replicas_of
from tests.pairwise import on_both
from twml_ops import distribute, layers, ops, optimizers, research
from twml_ops._keras import KERAS_3

N, D, B, STEPS = 200, 8, 16, 4
TOLERANCE = 2e-6  # of weights near 0.1; the dense gradients are added in another order


def functional(norm, **arguments):
    draw = tf.keras.initializers.RandomNormal
    inputs = [tf.keras.Input((None,), dtype=t, ragged=True) for t in ("int64", "float32")]
    table = layers.SparseLinear(D, N, kernel_initializer=draw(0, 0.1, seed=1))
    head = tf.keras.layers.Dense(1, kernel_initializer=draw(0, 0.3, seed=2))
    return tf.keras.Model(inputs, head(table(norm(N, name="norm", **arguments)(inputs))))


def make(strategy, optimizer, norm=layers.MaxNorm, **arguments):
    with strategy.scope() if strategy else contextlib.nullcontext():
        m = functional(norm, **arguments)
        o = optimizer()
        o.build(m.trainable_variables)
    return m, o


def step_of(model, optimizer, batch_size, strategy=None, eager=False):
    def replica(ids, values, labels):
        with tf.GradientTape() as tape:
            error = model([ids, values], training=True) - labels
            loss = tf.reduce_sum(error**2) / batch_size
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    def step(batch):
        if strategy is None:
            replica(*batch)
        else:
            strategy.run(replica, args=batch)

    return step if eager else tf.function(step)


def train(strategy, optimizer, eager=False, **model):
    m, o = make(strategy, optimizer, **model)
    step = step_of(m, o, B, strategy, eager)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        batch = ragged_batch(rng, B, N)
        step(replicas_of(strategy, batch) if strategy else batch)
    return m, o


OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "rowwise": lambda: optimizers.RowWiseAdagrad(0.1),
    "adam": lambda: optimizers.LazyAdam(0.01),
}


@pytest.mark.parametrize(("replicas", "name"), [(2, "sgd"), (2, "rowwise"), (4, "adam")])
def test_replicas_equal_one_on_the_concatenated_batch(replicas, name):
    strategy, optimizer = distribute.mirrored_strategy(replicas), OPTIMIZERS[name]
    got, got_optimizer = train(strategy, optimizer)
    want, want_optimizer = train(None, optimizer)
    for g, w in zip(got.variables, want.variables, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-5, atol=TOLERANCE)
    for g, w in zip(slots(got_optimizer, got), slots(want_optimizer, want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=TOLERANCE)
    for v in got.variables:
        first, *others = copies(strategy, v)
        assert all(first.tobytes() == o.tobytes() for o in others), v.name


DEFAULT = """
import numpy as np, tensorflow as tf
from tests.distribute.test_mirrored import OPTIMIZERS, TOLERANCE, train

got, _ = train(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), OPTIMIZERS["rowwise"])
want, _ = train(None, OPTIMIZERS["rowwise"])
for g, w in zip(got.variables, want.variables, strict=True):
    np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-5, atol=TOLERANCE)
"""


@pytest.mark.skipif(not KERAS_3, reason="an option of Keras 3")
def test_each_replica_divides_its_gradients_by_the_loss_scale(pair):
    got, _ = train(pair, lambda: optimizers.SGD(6.4, loss_scale_factor=64.0))
    want, _ = train(pair, lambda: optimizers.SGD(0.1))
    for g, w in zip(got.variables, want.variables, strict=True):
        np.testing.assert_array_equal(g.numpy(), w.numpy())


def test_a_strategy_with_collectives_trains_the_same():
    # In a new process, since TensorFlow confuses the collectives of two such strategies in one.
    program = f"import tests.conftest\n{DEFAULT}"
    done = forked.run(["-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def slots(optimizer, model):
    variables = model.trainable_variables
    return [tf.convert_to_tensor(s).numpy() for v in variables for s in optimizer.slots_of(v)]


def test_eager_training_gives_the_same(pair):
    got, _ = train(pair, lambda: optimizers.Adagrad(0.1), eager=True)
    want, _ = train(None, lambda: optimizers.Adagrad(0.1))
    for g, w in zip(got.variables, want.variables, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-5, atol=TOLERANCE)


@pytest.mark.parametrize("norm", [layers.MaxNorm, layers.OnlineStandardize])
def test_states_of_norm_layers_are_those_of_the_concatenated_batch(pair, norm):
    got, _ = train(pair, lambda: optimizers.SGD(0.0), norm=norm, decay=0.9)
    want, _ = train(None, lambda: optimizers.SGD(0.0), norm=norm, decay=0.9)
    state = norm.state_name
    for copy in copies(pair, getattr(got.get_layer("norm"), state)):
        assert copy.tobytes() == getattr(want.get_layer("norm"), state).numpy().tobytes()
    assert np.any(copy != 0)


def test_inference_exchanges_nothing(pair):
    m, _ = make(pair, lambda: optimizers.SGD(0.1))
    batch = replicas_of(pair, ragged_batch(np.random.default_rng(0), B, N))
    before = distribute.received_bytes(pair)
    pair.run(tf.function(lambda ids, values, _: m([ids, values])), args=batch)
    assert distribute.received_bytes(pair) == before
    assert not np.any(m.get_layer("norm").max_abs.numpy())


def test_a_merged_sketch_has_the_values_of_all_replicas(strategy):
    rng = np.random.default_rng(0)
    ids, values = rng.integers(0, 3, 4000), rng.normal(size=4000).astype(np.float32)
    parts = replicas_of(strategy, (tf.constant(ids), tf.constant(values)))

    @tf.function
    def quantiles(ids, values):
        def replica(ids, values):
            sketch = ops.sketch_update(ops.empty_sketch(0.01), ids, values)
            sketch = distribute.merge_replica_sketches(sketch)
            return sketch.totals, ops.sketch_quantiles(sketch, [0, 1, 2], [0.1, 0.5, 0.9])

        return strategy.run(replica, args=(ids, values))

    totals, found = (strategy.experimental_local_results(x) for x in quantiles(*parts))
    for t, q in zip(totals, found, strict=True):
        np.testing.assert_array_equal(t[:, 0], np.bincount(ids))
        for i in range(3):
            want = np.quantile(values[ids == i], [0.1, 0.5, 0.9])
            np.testing.assert_allclose(q[i], want, atol=0.1)


def test_two_strategies_in_one_process_do_not_interfere(pair):
    other = distribute.mirrored_strategy(2)
    a, _ = train(pair, lambda: optimizers.SGD(0.1))
    b, _ = train(other, lambda: optimizers.SGD(0.1))
    for x, y in zip(a.variables, b.variables, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-5, atol=TOLERANCE)


def test_replicas_with_a_learned_hash_train_as_one(pair):
    ids = np.random.default_rng(0).zipf(1.5, (64, 2)) % 30
    known = layers.CategoryRows(2, min_count=1)
    counts = known.new_counts()
    known.count(counts, ids)
    known.adapt_from_counts(counts)
    vectors = layers.FieldEmbedding(known.num_rows, 2)
    vectors.build()
    learned = research.LearnedHash(2)
    learned.learn(counts, known, vectors, [research.HashPlan(2, 2, 3, 5)] * 2)
    labels = (ids[:, :1] % 2).astype(np.float32)

    def trained(strategy):
        with strategy.scope() if strategy else contextlib.nullcontext():
            inputs = tf.keras.Input((2,), dtype="int64")
            rows = research.LearnedHash.from_config(learned.get_config())
            initializer = tf.keras.initializers.RandomNormal(seed=1)
            table = layers.FieldEmbedding(
                learned.num_rows, 1, pooling="sum", embeddings_initializer=initializer
            )
            model = tf.keras.Model(inputs, table(rows(inputs)))
            model.compile(optimizers.SGD(0.1), "mse", jit_compile=False)
        batches = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(B)
        model.fit(batches, epochs=2, verbose=0, shuffle=False)
        return model

    got, want = trained(pair), trained(None)
    np.testing.assert_allclose(got(ids), want(ids), rtol=1e-4, atol=1e-5)


def fitted(strategy, form):
    """The weights of a model after `fit` with batches of a form, and what `evaluate` returns."""
    rng = np.random.default_rng(0)
    ids = np.stack([np.sort(rng.choice(N, 3, replace=False)) for _ in range(2 * B)])
    values = rng.random((2 * B, 3)).astype(np.float32)
    rows = np.repeat(np.arange(2 * B), 3)
    batches = {
        "ragged": lambda: tuple(map(tf.RaggedTensor.from_tensor, (tf.constant(ids), values))),
        "ragged binary": lambda: tf.RaggedTensor.from_tensor(tf.constant(ids)),
        "sparse": lambda: tf.SparseTensor(
            np.stack([rows, ids.ravel()], axis=1), values.ravel(), (2 * B, N)
        ),
    }
    labels = (ids < N // 4).any(axis=1, keepdims=True).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((batches[form](), labels)).batch(B)
    with strategy.scope() if strategy else contextlib.nullcontext():
        draw = tf.keras.initializers.RandomNormal
        if form == "sparse":
            inputs = tf.keras.Input((N,), sparse=True)
        else:
            inputs = [tf.keras.Input((None,), dtype=t, ragged=True) for t in ("int64", "float32")]
            inputs = inputs if form == "ragged" else inputs[0]
        norm = layers.MaxNorm(N, name="norm")(inputs)
        hidden = layers.SparseLinear(D, N, kernel_initializer=draw(0, 0.1, seed=1))(norm)
        head = tf.keras.layers.Dense(1, "sigmoid", kernel_initializer=draw(0, 0.3, seed=2))
        model = tf.keras.Model(inputs, head(hidden))
        model.compile(
            optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["mae"], jit_compile=False
        )
    model.fit(data, epochs=2, verbose=0, shuffle=False)
    return model.get_weights(), model.evaluate(data, verbose=0)


@pytest.mark.parametrize("form", on_both(["ragged", "ragged binary", "sparse"], "ragged"))
def test_fit_and_evaluate_divide_batches_of_every_form_among_the_replicas(pair, form):
    (got, measured), (want, alone) = fitted(pair, form), fitted(None, form)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(measured, alone, rtol=1e-4)
