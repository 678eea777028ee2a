"""The updates of the optimizers against Keras' own: gradients, clipping, decay."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.optimizer_cases import (
    FTRL,
    OPTIMIZERS,
    WITH_STOCK,
    D,
    N,
    Schedule,
    assert_close,
    random,
    slots_of,
    stock,
)
from twml_ops import optimizers
from twml_ops._keras import KERAS_3


def train(optimizer, gradients, start=None, graph=False):
    """The variable after one step for each gradient."""
    w = tf.Variable(random(N, D, seed=7) if start is None else start)
    optimizer.build([w])

    def step(gradient):
        optimizer.apply_gradients([(gradient, w)])

    run = tf.function(step, reduce_retracing=True) if graph else step
    for gradient in gradients:
        run(gradient)
    return w.numpy()


def sparse_gradients(steps=3, all_rows=True, seed=0):
    """Slices with repeated ids in no order; all rows are touched if asked."""
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(steps):
        ids = np.concatenate([np.arange(N) if all_rows else [], rng.integers(0, N // 2, 9)])
        ids = rng.permutation(ids).astype(np.int64)
        rows = rng.normal(size=(len(ids), D)).astype(np.float32)
        result.append(tf.IndexedSlices(tf.constant(rows), tf.constant(ids), tf.constant([N, D])))
    return result


def dense(gradients):
    return [tf.convert_to_tensor(g) for g in gradients]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", WITH_STOCK)
def test_dense_gradients_are_updated_as_keras_does(name, graph):
    ours, keras, arguments = OPTIMIZERS[name]
    gradients = [tf.constant(random(N, D, seed=s)) for s in range(3)]
    got = train(ours(0.1, **arguments), gradients, graph=graph)
    assert_close(got, train(keras(0.1, **arguments), gradients))


@pytest.mark.parametrize("shape", [(), (N,), (N, 2, 3)])
@pytest.mark.parametrize("name", ["LazyAdam", "Ftrl", "RowWiseAdagrad"])
def test_dense_variables_of_any_rank(name, shape):
    ours, keras, arguments = OPTIMIZERS[name]
    keras = keras or stock.Adagrad  # row-wise is by element for all but matrices
    gradients = [tf.constant(random(*shape, seed=s)) for s in range(2)]
    start = random(*shape, seed=9)
    got = train(ours(0.1, **arguments), gradients, start)
    assert_close(got, train(keras(0.1, **arguments), gradients, start))


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", WITH_STOCK)
def test_gradients_of_repeated_ids_are_summed(name, graph):
    ours, keras, arguments = OPTIMIZERS[name]
    gradients = sparse_gradients()
    got = train(ours(0.1, **arguments), gradients, graph=graph)
    assert_close(got, train(keras(0.1, **arguments), dense(gradients)))


LIMITS = {
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.1},
    "weight_decay and clipnorm": {"weight_decay": 0.1, "clipnorm": 0.5},
}
if KERAS_3:
    LIMITS["loss_scale_factor"] = {"loss_scale_factor": 4.0}
    LIMITS["loss_scale_factor and clipnorm"] = {"loss_scale_factor": 4.0, "clipnorm": 0.5}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("name", ["SGD", "LazyAdam"])
def test_clipping_and_decay_equal_those_of_dense_gradients(name, limits):
    ours, keras, arguments = OPTIMIZERS[name]
    gradients = sparse_gradients()
    want = train(keras(0.1, **arguments, **limits), dense(gradients))
    assert_close(train(ours(0.1, **arguments, **limits), gradients), want)
    assert_close(train(ours(0.1, **arguments, **limits), dense(gradients)), want)


def test_global_clipnorm_counts_every_gradient_once():
    def step(optimizer, sparse):
        w, b = tf.Variable(random(N, D)), tf.Variable(random(D, seed=1))
        gradient = sparse_gradients(1, all_rows=False)[0]
        if not sparse:
            gradient = tf.convert_to_tensor(gradient)
        optimizer.apply_gradients([(gradient, w), (tf.constant(random(D, seed=2)), b)])
        return np.concatenate([w.numpy().ravel(), b.numpy()])

    want = step(stock.SGD(0.1, global_clipnorm=0.3), sparse=False)
    assert_close(step(optimizers.SGD(0.1, global_clipnorm=0.3), sparse=True), want)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_without_a_gradient_keep_every_bit(name):
    ours, _, arguments = OPTIMIZERS[name]
    start = random(N, D)
    optimizer = ours(0.1, weight_decay=0.1, clipnorm=3.0, **arguments)
    w = tf.Variable(start)
    optimizer.build([w])
    before = slots_of(optimizer)
    for gradient in sparse_gradients(4, all_rows=False):  # ids below N / 2
        optimizer.apply_gradients([(gradient, w)])
    assert w.numpy()[N // 2 :].tobytes() == start[N // 2 :].tobytes()
    assert not np.any(w.numpy()[0] == start[0])
    for slot, initial in zip(slots_of(optimizer), before, strict=True):
        assert slot[N // 2 :].tobytes() == initial[N // 2 :].tobytes()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda o: o,
        lambda o: optimizers.CompositeOptimizer(optimizers.SGD(0.0), {"w|other": o}),
        pytest.param(
            lambda o: optimizers.LossScaleOptimizer(o, initial_scale=1.0),
            marks=pytest.mark.skipif(not KERAS_3, reason="it is the class of Keras 2"),
        ),
    ],
    ids=["alone", "composite", "loss_scale"],
)
def test_variables_can_be_excluded_from_weight_decay(wrap):
    w, other = tf.Variable(random(N, D), name="w"), tf.Variable(random(N, D), name="other")
    start, start_of_other = w.numpy(), other.numpy()
    optimizer = wrap(optimizers.SGD(0.1, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_list=[other])
    optimizer.build([w, other])
    nothing = tf.IndexedSlices(tf.zeros([1, D]), tf.constant([3]), [N, D])
    optimizer.apply_gradients([(nothing, w), (nothing, other)])
    assert_close(w.numpy()[3], start[3] * 0.95)
    np.testing.assert_array_equal(other.numpy(), start_of_other)


def test_schedules_and_new_learning_rates_are_followed():
    one = tf.IndexedSlices(tf.ones([1, D]), tf.constant([3]), tf.constant([N, D]))
    start = np.zeros((N, D), np.float32)
    got = train(optimizers.SGD(Schedule(1.0, 1, 0.5)), [one] * 3, start, graph=True)
    assert_close(got[3], np.full(D, -1.75))
    optimizer = optimizers.SGD(1.0)
    w = tf.Variable(start)
    optimizer.apply_gradients([(one, w)])
    optimizer.learning_rate = 0.5
    optimizer.apply_gradients([(one, w)])
    assert_close(w.numpy()[3], np.full(D, -1.5))
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize("composite", [False, True])
def test_a_first_step_that_creates_the_slots_is_traced_once(composite):
    """TensorFlow traces a function whose first trace creates variables once more."""
    w, traces = tf.Variable(random(N, D, seed=7)), []
    adam = optimizers.LazyAdam(0.1)
    optimizer = optimizers.CompositeOptimizer(adam, {}) if composite else adam

    @tf.function(autograph=False, reduce_retracing=True)
    def step(gradient):
        traces.append(gradient)
        optimizer.apply_gradients([(gradient, w)])

    gradients = dense(sparse_gradients())
    for gradient in gradients:
        step(gradient)
    assert len(traces) == 1
    np.testing.assert_array_equal(w, train(optimizers.LazyAdam(0.1), gradients, graph=True))


def test_lazy_adam_is_corrected_by_the_global_step():
    optimizer = optimizers.LazyAdam(0.1)
    w = tf.Variable(np.zeros((N, D), np.float32))
    for i in (1, 1, 3):  # row 3 comes first at step 3
        gradient = tf.IndexedSlices(tf.ones([1, D]), tf.constant([i]), [N, D])
        optimizer.apply_gradients([(gradient, w)])
    step = 0.1 * np.sqrt(1 - 0.999**3) / (1 - 0.9**3)
    assert_close(w.numpy()[3], np.full(D, -step * 0.1 / (np.sqrt(0.001) + 1e-7)))


def test_rowwise_adagrad_keeps_one_number_a_row():
    optimizer = optimizers.RowWiseAdagrad(0.1, initial_accumulator_value=0.5, epsilon=1e-4)
    gradients = sparse_gradients(3)
    got = train(optimizer, gradients)
    assert [s.shape for s in slots_of(optimizer)] == [(N,)]
    w, a = random(N, D, seed=7).astype(np.float64), np.full(N, 0.5)
    for g in dense(gradients):
        a += np.mean(g.numpy() ** 2, axis=1)
        w -= 0.1 * g.numpy() / np.sqrt(a + 1e-4)[:, None]
    assert_close(got, w)
    again = optimizers.RowWiseAdagrad(0.1, initial_accumulator_value=0.5, epsilon=1e-4)
    assert_close(train(again, dense(gradients)), w)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_may_end_at_zero(name, sparse, graph):
    ours, _, arguments = OPTIMIZERS[name]
    if name in ("Momentum", "Nesterov"):
        arguments = {**arguments, "momentum": 0.0}  # or the last steps' momentum goes on
    ends = tf.keras.optimizers.schedules.PolynomialDecay(0.1, 2, 0.0)
    gradients = sparse_gradients(4) if sparse else dense(sparse_gradients(4))
    after_two = train(ours(ends, **arguments), gradients[:2], graph=graph)
    optimizer = ours(ends, **arguments)
    np.testing.assert_array_equal(train(optimizer, gradients, graph=graph), after_two)
    assert all(np.isfinite(slot).all() for slot in slots_of(optimizer))


@pytest.mark.parametrize("sparse", [False, True])
def test_ftrl_ignores_steps_with_a_learning_rate_of_zero(sparse):
    rates = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.1, 0.0, 0.1])
    gradients = sparse_gradients(3) if sparse else dense(sparse_gradients(3))
    got = train(optimizers.Ftrl(rates, **FTRL), gradients)
    want = train(optimizers.Ftrl(0.1, **FTRL), [gradients[0], gradients[2]])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RowWiseAdagrad", "LazyAdam", "Ftrl"])
def test_a_rate_of_zero_leaves_every_bit_of_a_bfloat16_table(name):
    ours, _, arguments = OPTIMIZERS[name]
    w = tf.Variable(tf.cast(random(N, D), tf.bfloat16))
    before = tf.cast(w, tf.float32).numpy()
    optimizer = ours(0.0, **arguments)
    for gradient in sparse_gradients(2):
        optimizer.apply_gradients([(gradient, w)])
    np.testing.assert_array_equal(tf.cast(w, tf.float32).numpy(), before)


@pytest.mark.parametrize("sparse", [False, True])
def test_ftrl_keeps_elements_that_never_had_a_gradient(sparse):
    gradient = np.zeros((N, D), np.float32)
    gradient[2, 1] = 1
    given = tf.constant(gradient)
    if sparse:
        given = tf.IndexedSlices(given[:4], tf.range(4), tf.constant([N, D]))
    start = random(N, D)
    got = train(optimizers.Ftrl(0.1, initial_accumulator_value=0.0), [given], start)
    assert np.isfinite(got).all()
    untouched = gradient == 0
    np.testing.assert_array_equal(got[untouched], start[untouched])


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("shape", [(N,), (N, 3), (N, 2, 3)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_of_any_rank_equal_dense_ones(name, shape, graph):
    ours, _, arguments = OPTIMIZERS[name]
    ids = np.arange(N)  # of all rows: the rules that decay moments then agree
    rows = [random(*shape, seed=s) for s in range(2)]
    sparse = [tf.IndexedSlices(tf.constant(r), tf.constant(ids), tf.constant(shape)) for r in rows]
    start = random(*shape, seed=9)
    by_row, by_all = ours(0.1, **arguments), ours(0.1, **arguments)
    got = train(by_row, sparse, start, graph=graph)
    assert_close(got, train(by_all, [tf.constant(r) for r in rows], start, graph=graph))
    for g, w in zip(slots_of(by_row), slots_of(by_all), strict=True):
        assert_close(g, w)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_table_without_columns_is_accepted(name):
    ours, _, arguments = OPTIMIZERS[name]
    empty = tf.zeros([2, 0])
    for gradient in (tf.zeros([N, 0]), tf.IndexedSlices(empty, tf.constant([1, 3]), [N, 0])):
        optimizer = ours(0.1, **arguments)
        assert train(optimizer, [gradient], np.zeros((N, 0), np.float32)).shape == (N, 0)
        assert all(np.isfinite(slot).all() for slot in slots_of(optimizer))


def test_ftrl_with_l1_keeps_rare_features_at_zero():
    optimizer = optimizers.Ftrl(0.1, l1_regularization_strength=100.0)
    got = train(optimizer, sparse_gradients(2), np.zeros((N, D), np.float32))
    assert np.all(got == 0)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", WITH_STOCK)
def test_embedding_and_gather_gradients(name, graph):
    ours, keras, arguments = OPTIMIZERS[name]
    ids = tf.constant([[0, 1, 1, 2, 3], [4, 5, 6, 7, 1]])
    target = random(2, 5, D, seed=4)

    def run(optimizer, densify):
        embedding = tf.keras.layers.Embedding(N, D)
        embedding.build((None, None))
        embedding.set_weights([random(N, D)])
        table = tf.Variable(random(N, D, seed=1))
        variables = [embedding.embeddings, table]
        optimizer.build(variables)

        def step():
            with tf.GradientTape() as tape:
                y = embedding(ids) + tf.gather(table, ids)
                loss = tf.reduce_sum((y - target) ** 2)
            gradients = tape.gradient(loss, variables)
            if densify:
                gradients = [tf.convert_to_tensor(g) for g in gradients]
            else:
                assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

        for _ in range(3):
            (tf.function(step) if graph and not densify else step)()
        return np.concatenate([v.numpy() for v in variables])

    got = run(ours(0.05, **arguments), densify=False)
    assert_close(got, run(keras(0.05, **arguments), densify=True))


def test_unknown_variables_are_refused():
    optimizer = optimizers.SGD(0.1)
    optimizer.build([tf.Variable(random(N, D))])
    with pytest.raises((ValueError, KeyError), match=r"(?i)unknown variable|cannot recognize"):
        optimizer.apply_gradients([(sparse_gradients(1)[0], tf.Variable(random(N, D)))])


def test_an_id_out_of_range_changes_nothing():
    w = tf.Variable(random(N, D))
    start = w.numpy()
    gradient = tf.IndexedSlices(tf.ones([2, D]), tf.constant([0, N]), [N, D])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1\] = 8 is out of range"):
        optimizers.Adagrad(0.1).apply_gradients([(gradient, w)])
    np.testing.assert_array_equal(w.numpy(), start)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_of_types_without_a_kernel_are_updated_as_those_of_float32(name, dtype):
    """The rows of a sparse gradient only, and repeated ids are summed."""
    make, _, options = OPTIMIZERS[name]
    start, rows = random(N, D), random(3, D, seed=1)
    kind = tf.keras.Variable if KERAS_3 else tf.Variable
    results = []
    for kept in ("float32", dtype):
        variable = kind(start, dtype=kept, name="v")
        optimizer = make(0.1, **options, weight_decay=0.1, global_clipnorm=1.0, use_ema=True)
        for _ in range(2):
            gradient = tf.IndexedSlices(
                tf.constant(rows, kept), tf.constant([1, 5, 1]), tf.constant([N, D])
            )
            optimizer.apply_gradients([(gradient, variable)])
        results.append(variable.numpy())
    tolerance = 2e-5 if dtype == "float64" else 2e-2
    np.testing.assert_allclose(results[1], results[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(results[1][[0, 2]], start.astype(dtype)[[0, 2]])


def test_the_global_norm_is_that_of_gradients_of_all_types():
    """Of dense layers in bfloat16 beside a table in float32, for example."""
    kind = tf.keras.Variable if KERAS_3 else tf.Variable
    wide, narrow, table = kind([3.0]), kind([0.0], dtype="bfloat16"), kind([[0.0], [0.0]])
    row = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([1]), tf.constant([2, 1]))
    optimizer = optimizers.SGD(1.0, global_clipnorm=1.0)
    gradients = [tf.constant([12.0]), tf.constant([0.0], tf.bfloat16), row]
    gradients[1] = tf.constant([3.0], tf.bfloat16)
    optimizer.apply_gradients(list(zip(gradients, [wide, narrow, table], strict=True)))
    np.testing.assert_allclose(wide.numpy(), [3 - 12 / 13], rtol=1e-6)
    np.testing.assert_allclose(table.numpy(), [[0], [-4 / 13]], rtol=1e-6)
    np.testing.assert_allclose(np.float32(narrow.numpy()), [-3 / 13], rtol=1e-2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_reading_every_attribute_of_an_optimizer_changes_nothing(name):
    """Keras reads all of them when it saves a model."""
    make, _, options = OPTIMIZERS[name]
    kind = tf.keras.Variable if KERAS_3 else tf.Variable
    variable = kind(random(N, D), name="v")
    inner = make(0.1, **options, use_ema=True, ema_momentum=0.5)
    for optimizer in (
        inner,
        optimizers.CompositeOptimizer(optimizers.SGD(), {"v": inner}),
        optimizers.LossScaleOptimizer(inner),
    ):
        optimizer.build([variable])
        for ids in ([0, 1], [2], [3]):
            gradient = tf.IndexedSlices(random(len(ids), D), tf.constant(ids), tf.constant([N, D]))
            optimizer.apply_gradients([(gradient, variable)])
        before = [v.numpy().tobytes() for v in (*inner._variables, variable)]
        for attribute in dir(optimizer):
            with contextlib.suppress(Exception):
                getattr(optimizer, attribute)
        assert [v.numpy().tobytes() for v in (*inner._variables, variable)] == before


@pytest.mark.parametrize("pair", [("Adagrad", "RowWiseAdagrad"), ("RowWiseAdagrad", "Adagrad")])
def test_a_slot_of_rows_is_not_loaded_as_one_of_weights_and_the_reverse(pair):
    w = tf.Variable(random(N, D), name="w")
    saved, other = (getattr(optimizers, name)() for name in pair)
    store = {}
    for optimizer in (saved, other):
        optimizer.build([w])
    saved.apply_gradients([(sparse_gradients(1)[0], w)])
    saved.save_own_variables(store)
    with pytest.warns(UserWarning, match="Skipping variable loading .* of other slots"):
        other.load_own_variables(store)
    assert int(tf.convert_to_tensor(other.iterations)) == 0


@pytest.mark.parametrize("numbered", [True, False], ids=["now", "earlier version"])
def test_the_state_of_an_optimizer_with_other_slots_is_not_loaded(numbered):
    w = tf.Variable(random(N, D), name="w")
    momentum, adagrad, again = optimizers.Momentum(0.1), optimizers.Adagrad(), optimizers.Momentum()
    store = {}
    for optimizer in (momentum, adagrad, again):
        optimizer.build([w])
    momentum.apply_gradients([(sparse_gradients(1)[0], w)])
    momentum.save_own_variables(store)
    if not numbered:  # which slots they are is not known
        del store["slots"]
    else:
        before = slots_of(adagrad)
        with pytest.warns(UserWarning, match="Skipping variable loading .* of other slots"):
            adagrad.load_own_variables(store)
        for slot, want in zip(slots_of(adagrad), before, strict=True):
            np.testing.assert_array_equal(slot, want)
    again.load_own_variables(store)
    for slot, want in zip(slots_of(again), slots_of(momentum), strict=True):
        np.testing.assert_array_equal(slot, want)
