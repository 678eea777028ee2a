"""Whether updates are fused, run once per step, and are equal whether they are fused or not.

Every case trains the same small model twice: on our layer with our optimizer, and as a dense layer
with Keras' own. All ids are in every batch, so even momentum and Adam are the same for both, and
an update that ran twice, or not at all, would show.
"""

import contextlib
import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops import distribute, layers, ops, optimizers
from twml_ops._keras import KERAS_3

N, D, B, WIDTH, STEPS = 10, 6, 8, 5, 4
stock = tf.keras.optimizers
Schedule = tf.keras.optimizers.schedules.ExponentialDecay

OPTIMIZERS = {
    "SGD": (optimizers.SGD, stock.SGD, {}),
    "Momentum": (optimizers.Momentum, stock.SGD, {"momentum": 0.9}),
    "Nesterov": (optimizers.Momentum, stock.SGD, {"momentum": 0.9, "nesterov": True}),
    "Adagrad": (optimizers.Adagrad, stock.Adagrad, {}),
    "LazyAdam": (optimizers.LazyAdam, stock.Adam, {}),
    "Ftrl": (
        optimizers.Ftrl,
        stock.Ftrl,
        {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02, "beta": 0.1},
    ),
    "RowWiseAdagrad": (optimizers.RowWiseAdagrad, None, {}),  # Keras has none
}
FUSED = {"fused": 1}
SLICES = {"by slices": 1, "gradient": 1}


def data(seed=0):
    """Ids and values [STEPS * B, WIDTH], every id in every batch; labels."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, N, (STEPS, B * WIDTH))
    ids[:, : 2 * N] = np.tile(np.arange(N), 2)
    ids = np.take_along_axis(ids, np.argsort(rng.random(ids.shape), axis=1), axis=1)
    ids = ids.reshape(-1, WIDTH)
    values = rng.normal(size=ids.shape).astype(np.float32)
    return ids, values, rng.normal(size=(len(ids), 1)).astype(np.float32)


def sparse_model(calls=1, dtype=None, **layer):
    ids = tf.keras.Input((WIDTH,), dtype="int64")
    values = tf.keras.Input((WIDTH,), dtype="float32")
    table = layers.SparseLinear(D, N, dtype=dtype, **layer)
    hidden = table((ids, values))
    for _ in range(calls - 1):
        hidden = hidden + table((ids, values))
    return tf.keras.Model([ids, values], tf.keras.layers.Dense(1, dtype="float32")(hidden))


def dense_model(calls=1, dtype=None, trainable=True, num_partitions=1):
    del num_partitions
    x = tf.keras.Input((N,))
    table = tf.keras.layers.Dense(D, dtype=dtype, trainable=trainable)
    hidden = table(x)
    for _ in range(calls - 1):
        hidden = hidden + table(x)
    return tf.keras.Model(x, tf.keras.layers.Dense(1, dtype="float32")(hidden))


def dense(ids, values):
    x = np.zeros((len(ids), N), np.float32)
    np.add.at(x, (np.arange(len(ids))[:, None], ids), values)
    return x


def initial_weights():
    rng = np.random.default_rng(3)
    shapes = [(N, D), (D,), (D, 1), (1,)]
    return [rng.normal(scale=0.5, size=s).astype(np.float32) for s in shapes]


def set_weights(model, weights, partitions=1):
    kernels = [weights[0][p::partitions] for p in range(partitions)]
    for layer, values in zip(
        [x for x in model.layers if x.weights], [[*kernels, weights[1]], weights[2:]], strict=True
    ):
        layer.set_weights(values)


def get_weights(model, partitions=1):
    first, second = (x.get_weights() for x in model.layers if x.weights)
    table = np.zeros((N, D), np.float32)
    for p in range(partitions):
        table[p::partitions] = first[p]
    return [table, first[partitions], *second]


def train(make_model, optimizer, inputs, scope=None, policy=None, compile=None, **model):
    """The weights after one epoch."""
    tf.keras.mixed_precision.set_global_policy(policy or "float32")
    with scope.scope() if scope else contextlib.nullcontext():
        m = make_model(**model)
        m.compile(optimizer(), "mse", **(compile or {}))
    partitions = model.get("num_partitions", 1) if make_model is sparse_model else 1
    set_weights(m, initial_weights(), partitions)
    *_, labels = data()
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(B, drop_remainder=True)
    m.fit(batches, verbose=0)
    assert int(tf.convert_to_tensor(m.optimizer.iterations)) == STEPS
    return get_weights(m, partitions)


def train_ours(optimizer, **arguments):
    ids, values, _ = data()
    return train(sparse_model, optimizer, (ids, values), **arguments)


def train_stock(optimizer, **arguments):
    ids, values, _ = data()
    return train(dense_model, optimizer, dense(ids, values), **arguments)


def assert_close(got, want, tolerance=2e-5):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def bits(weights):
    return [w.tobytes() for w in weights]


@contextlib.contextmanager
def never_fused():
    """Updates in this block are not fused: they take the rows of the gradient."""
    original = ops.apply_rows
    ops.apply_rows = functools.partial(original, fuse=False)
    try:
        yield
    finally:
        ops.apply_rows = original


def make(name):
    ours, _, arguments = OPTIMIZERS[name]
    return lambda: ours(0.1, **arguments)


@functools.cache
def fitted(name):
    """The weights after a plain fit, with which many tests compare."""
    return train_ours(make(name))


@pytest.mark.parametrize("name", on_both(OPTIMIZERS, "SGD", "Ftrl"))
def test_fit_is_fused_and_equals_keras(name, executed):
    with executed() as ran:
        got = train_ours(make(name))
    assert ran == FUSED
    _, keras, arguments = OPTIMIZERS[name]
    if keras:
        assert_close(got, train_stock(lambda: keras(0.1, **arguments)))


@pytest.mark.parametrize("name", on_both(OPTIMIZERS, "SGD", "LazyAdam"))
def test_fused_and_by_slices_are_the_same(name, executed):
    with never_fused(), executed() as ran:
        by_slices = train_ours(make(name))
    assert ran == SLICES
    # Of the same gradients they give the same bits, by a law of the ops.
    assert_close(by_slices, fitted(name), 2e-6)


# What one trains with, and which path it takes.
CASES = {
    "steps_per_execution": ({"compile": {"steps_per_execution": 2}}, {}, FUSED),
    "run_eagerly": ({"compile": {"run_eagerly": True}}, {}, SLICES),
    "clipnorm": ({}, {"clipnorm": 0.1}, SLICES),
    "clipvalue": ({}, {"clipvalue": 0.02}, SLICES),
    "global_clipnorm": ({}, {"global_clipnorm": 0.1}, SLICES),
    "weight_decay": ({}, {"weight_decay": 0.1}, FUSED),
    "schedule": ({}, {"learning_rate": Schedule(0.1, 2, 0.5)}, FUSED),
    "shared layer": ({"calls": 2}, {}, None),
    "frozen layer": ({"trainable": False}, {}, {}),
    "two partitions": ({"num_partitions": 2}, {}, {"fused": 2}),
}
if KERAS_3:
    CASES["loss_scale_factor"] = ({}, {"loss_scale_factor": 64.0}, SLICES)


@pytest.mark.parametrize(("training", "optimizer", "path"), CASES.values(), ids=CASES)
def test_each_way_to_train_equals_keras(training, optimizer, path, executed):
    rate = optimizer.get("learning_rate", 0.1)
    others = {k: v for k, v in optimizer.items() if k != "learning_rate"}
    with executed() as ran:
        got = train_ours(lambda: optimizers.Adagrad(rate, **others), **training)
    if path is None:  # the sum of two gradients: the slices of both, updated once
        assert ran["by slices"] == 1
        assert ran["fused"] == 0
    else:
        assert ran == path
    assert_close(got, train_stock(lambda: stock.Adagrad(rate, **others), **training))


LOSS_SCALED = {
    "Keras": tf.keras.mixed_precision.LossScaleOptimizer,
    "ours": optimizers.LossScaleOptimizer,
}


@pytest.mark.parametrize("whose", LOSS_SCALED)
def test_a_loss_scale_optimizer_takes_the_slices_and_equals_the_plain_one(whose, executed):
    with executed() as ran:
        got = train_ours(lambda: LOSS_SCALED[whose](optimizers.Adagrad(0.1)))
    assert ran == SLICES
    assert_close(got, fitted("Adagrad"), 2e-6)  # scaling by powers of 2 is exact


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has its own loss-scaled step")
@pytest.mark.parametrize("whose", LOSS_SCALED)
def test_our_loss_scaling_makes_nothing_as_large_as_the_table(whose):
    ids, values, labels = (a[:B] for a in data())
    m = sparse_model()
    optimizer = LOSS_SCALED[whose](optimizers.LazyAdam(0.1))
    optimizer.build(m.trainable_variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((m((ids, values)) - labels) ** 2))
        gradients = tape.gradient(loss, m.trainable_variables)
        optimizer.apply(gradients, m.trainable_variables)

    graph = step.get_concrete_function().graph.as_graph_def()
    every = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    scatters = [n for n in every if n.op == "TensorScatterUpdate"]
    assert bool(scatters) == (whose == "Keras")


def test_compile_keeps_our_loss_scaling_under_mixed_float16(tmp_path):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    m = sparse_model()
    m.compile(optimizers.LossScaleOptimizer(optimizers.LazyAdam(0.1)), "mse", jit_compile=False)
    assert type(m.optimizer) is optimizers.LossScaleOptimizer or not KERAS_3
    ids, values, labels = data()
    m.fit((ids, values), labels, batch_size=B, verbose=0)
    m.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras")
    assert type(again.optimizer) is type(m.optimizer)
    assert bits(again.get_weights()) == bits(m.get_weights())
    for model in (m, again):
        model.fit((ids, values), labels, batch_size=B, shuffle=False, verbose=0)
    assert_close(again.get_weights(), m.get_weights(), 1e-3)  # of half precision


@pytest.mark.parametrize("wrapped", [False, True])
def test_only_loss_scaling_over_whole_tables_is_warned_of(wrapped):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer = optimizers.CompositeOptimizer(optimizers.LazyAdam(0.1), {})
    m = sparse_model()
    m.compile(optimizers.LossScaleOptimizer(optimizer) if wrapped else optimizer, "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids, values, labels = data()
        m.fit((ids, values), labels, batch_size=B, verbose=0)
    ours = [w for w in caught if "LossScaleOptimizer(LazyAdam(...))" in str(w.message)]
    assert len(ours) == (KERAS_3 and not wrapped)


@pytest.mark.parametrize("whose", LOSS_SCALED)
def test_a_step_that_overflows_is_skipped(whose):
    m = sparse_model()
    m.compile(LOSS_SCALED[whose](optimizers.Adagrad(0.1)), "mse", jit_compile=False)
    before = bits(m.get_weights())
    ids, values, labels = data()
    values[3, 2] = np.inf
    m.fit((ids[:B], values[:B]), labels[:B], batch_size=B, verbose=0)
    assert bits(m.get_weights()) == before


@pytest.mark.parametrize(("policy", "path"), [("mixed_bfloat16", FUSED), ("mixed_float16", SLICES)])
def test_mixed_precision_keeps_the_table_in_float32(policy, path, executed):
    with executed() as ran:
        got = train_ours(lambda: optimizers.SGD(0.1), policy=policy)
    assert ran == path
    assert got[0].dtype == np.float32
    assert_close(got, train_stock(lambda: stock.SGD(0.1)), 0.02)


@pytest.mark.parametrize(
    "replicas_and_name",
    on_both([(1, "SGD"), (2, "SGD"), (2, "LazyAdam"), (2, "RowWiseAdagrad")], (2, "LazyAdam")),
)
def test_mirrored_replicas_equal_one(replicas_and_name, executed):
    replicas, name = replicas_and_name
    strategy = distribute.mirrored_strategy(replicas)
    with executed() as ran:
        got = train_ours(make(name), scope=strategy)
    # Every replica updates in one pass, after summing its rows, which here are less than entries.
    assert ran == (FUSED if replicas == 1 else {"fused": 2, "gradient": 2})
    assert_close(got, fitted(name))


def test_mirrored_replicas_equal_keras_when_clipped():
    strategy = distribute.mirrored_strategy(2)
    limits = {"clipnorm": 0.1, "weight_decay": 0.1}
    got = train_ours(lambda: optimizers.Adagrad(0.1, **limits), scope=strategy)
    assert_close(got, train_stock(lambda: stock.Adagrad(0.1, **limits), scope=strategy))


def test_a_persistent_tape_gives_a_gradient_that_fuses_each_time(executed):
    w, other = tf.Variable(initial_weights()[0]), tf.Variable(initial_weights()[0])
    ids, values, splits = tf.constant([1, 4, 1], tf.int64), tf.constant([1.0, 2.0, 0.5]), [0, 2, 3]
    rates = (0.1, 0.02)
    sgd = [optimizers.SGD(r) for r in rates]
    for o in sgd:
        o.build([w])

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            y = ops.sparse_linear(ids, values, splits, w)
            loss = tf.reduce_sum(y)
            square = tf.reduce_sum(y**2)
        for o, target in zip(sgd, (loss, square), strict=True):
            o.apply_gradients([(tape.gradient(target, w), w)])

    with executed() as ran:
        step()
    assert ran == {"fused": 2}
    x = np.zeros((2, N), np.float32)
    np.add.at(x, ([0, 0, 1], [1, 4, 1]), [1.0, 2.0, 0.5])
    y = x @ other.numpy()
    want = other.numpy() - x.T @ (rates[0] * np.ones_like(y) + rates[1] * 2 * y)
    np.testing.assert_allclose(w, want, rtol=1e-5, atol=1e-6)


def test_a_gradient_with_another_consumer_is_still_right(executed):
    w = tf.Variable(initial_weights()[0])
    before = w.numpy()
    sgd = optimizers.SGD(0.1)
    sgd.build([w])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear([2, 3, 2], None, [0, 3], w))
        gradient = tape.gradient(loss, w)
        sgd.apply_gradients([(gradient, w)])
        return tf.norm(gradient.values)

    with executed() as ran:
        norm = step()
    assert ran == {"fused": 1, "gradient": 1}
    assert float(norm) == pytest.approx(np.sqrt(D * (2**2 + 1)))
    np.testing.assert_allclose(w.numpy()[2:4], before[2:4] - [[0.2], [0.1]], rtol=1e-5, atol=1e-6)


def test_a_gradient_of_an_inner_function_takes_the_slices(executed):
    w = tf.Variable(initial_weights()[0])
    before = w.numpy()
    sgd = optimizers.SGD(0.1)
    sgd.build([w])

    @tf.function
    def forward():
        return ops.sparse_linear([2, 3, 2], None, [0, 3], w)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward())
        sgd.apply_gradients([(tape.gradient(loss, w), w)])

    with executed() as ran:
        step()
    assert ran == SLICES
    np.testing.assert_allclose(w.numpy()[2:4], before[2:4] - [[0.2], [0.1]], rtol=1e-5, atol=1e-6)


def test_a_gradient_applied_inside_a_condition_takes_the_slices(executed):
    w = tf.Variable(initial_weights()[0])
    before = w.numpy()
    sgd = optimizers.SGD(0.1)
    sgd.build([w])

    @tf.function
    def step(go):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ops.sparse_linear([2, 3, 2], None, [0, 3], w))
        gradient = tape.gradient(loss, w)
        if go:
            sgd.apply_gradients([(gradient, w)])

    step(tf.constant(False))
    assert w.numpy().tobytes() == before.tobytes()
    with executed() as ran:
        step(tf.constant(True))
    np.testing.assert_allclose(w.numpy()[2:4], before[2:4] - [[0.2], [0.1]], rtol=1e-5, atol=1e-6)
    assert ran["fused"] == 0


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_a_gradient_penalty_trains_as_on_a_dense_layer(name, executed):
    ours, keras, arguments = OPTIMIZERS[name]
    ids, values, labels = (a[:B] for a in data())
    x = dense(ids, values)
    table, twin = tf.Variable(initial_weights()[0]), tf.Variable(initial_weights()[0])
    splits = np.arange(0, B * WIDTH + 1, WIDTH)
    flat = tf.constant(values.ravel()), tf.constant(ids.ravel())

    def step_of(optimizer, variable, product):
        optimizer.build([variable])

        @tf.function
        def step():
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    loss = tf.reduce_mean((tf.reduce_sum(product(), 1) - labels[:, 0]) ** 2)
                first = tf.convert_to_tensor(inner.gradient(loss, variable))
                total = loss + 0.1 * tf.reduce_sum(first**2)
            optimizer.apply_gradients([(outer.gradient(total, variable), variable)])

        return step

    with executed() as ran:
        step = step_of(
            ours(0.01, **arguments),
            table,
            lambda: ops.sparse_linear(flat[1], flat[0], splits, table),
        )
        step()
    step()
    assert ran["fused"] == 1  # what the penalty adds comes through the product's output
    twin_step = step_of(keras(0.01, **arguments), twin, lambda: x @ twin)
    twin_step()
    twin_step()
    assert_close([table.numpy()], [twin.numpy()], 1e-4)
    assert not np.allclose(table, initial_weights()[0], atol=1e-3)


def test_a_gradient_in_a_penalty_is_still_fused_alone(executed):
    table, twin = tf.Variable(initial_weights()[0]), tf.Variable(initial_weights()[0])
    sgd = optimizers.SGD(0.1)
    sgd.build([table])
    scale = tf.Variable(2.0)

    @tf.function
    def step():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y = scale * ops.sparse_linear([2, 3, 2], None, [0, 3], table)
                loss = tf.reduce_sum(y**2)
            gradient = inner.gradient(loss, table)
            penalty = tf.reduce_sum(gradient.values**2)
        by_scale = outer.gradient(penalty, scale)
        sgd.apply_gradients([(gradient, table)])
        return by_scale

    with executed() as ran:
        by_scale = step()
    assert ran["fused"] == 1
    x = dense(np.array([[2, 3, 2]]), np.ones((1, 3), np.float32))
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum((scale * (x @ twin)) ** 2)
        gradient = inner.gradient(loss, twin)
        penalty = tf.reduce_sum(gradient**2)
    np.testing.assert_allclose(by_scale, outer.gradient(penalty, scale), rtol=1e-4)
    twin.assign_sub(0.1 * gradient)
    np.testing.assert_allclose(table, twin, rtol=1e-4, atol=1e-5)
