"""`use_ema`: averages in O(touched rows) equal averages of all weights in every step."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.distribute.conftest import copies
from tests.pairwise import on_both, pairwise
from twml_ops import distribute, export, layers, ops, optimizers, placement
from twml_ops._keras import KERAS_3
from twml_ops.ops import _library
from twml_ops.ops._tape import tf_variable

stock = tf.keras.optimizers
N, D, WIDTH, B, STEPS = 40, 3, 4, 8, 5
MOMENTUM = 0.8
OPTIMIZERS = ("SGD", "Momentum", "Adagrad", "RowWiseAdagrad", "LazyAdam", "Ftrl")
# Each touch rounds its row a few times, and earlier errors decay by the momentum.
TOLERANCE = 2e-6


def data(batches=STEPS, used=N // 2):
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.4, (batches * B, WIDTH)), used) - 1
    values = rng.uniform(-1, 1, ids.shape).astype(np.float32)
    return [ids, values], rng.integers(0, 2, (len(ids), 1)).astype(np.float32)


def model_of(optimizer, dtype="float32", **options):
    tf.keras.utils.set_random_seed(2)
    inputs = [tf.keras.Input((WIDTH,), dtype=t) for t in ("int64", "float32")]
    hidden = layers.SparseLinear(D, N, activation="tanh", kernel_dtype=dtype, name="table")(inputs)
    output = tf.keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="top")(hidden)
    model = tf.keras.Model(inputs, output)
    model.compile(optimizer, "binary_crossentropy", **options)
    return model


def with_average(kind=optimizers.LazyAdam, rate=0.05, **options):
    return kind(rate, use_ema=True, ema_momentum=MOMENTUM, **options)


class DenseAverage(tf.keras.callbacks.Callback):
    """Averages of all weights in float64, and the averages that the optimizer has in each step."""

    def __init__(self, momentum=MOMENTUM):
        super().__init__()
        self.momentum = momentum
        self.errors = []

    def weights(self):
        return [np.float64(tf.cast(w, tf.float64)) for w in self.model.trainable_variables]

    def on_train_begin(self, logs=None):
        # Keras 3 begins with the weights after the first step, Keras 2 with those before it.
        self.average = None if KERAS_3 else self.weights()

    def on_train_batch_end(self, batch, logs=None):
        now, m = self.weights(), self.momentum
        if self.average is None:
            self.average = now
        else:
            self.average = [m * a + (1 - m) * w for a, w in zip(self.average, now, strict=True)]
        with optimizers.averaged_weights(self.model):
            self.errors.append(distance(self.weights(), self.average))


def distance(one, other):
    return max(np.abs(np.float64(a) - np.float64(b)).max() for a, b in zip(one, other, strict=True))


def fit(model, *callbacks, epochs=2, **options):
    x, y = data()
    return model.fit(
        x,
        y,
        batch_size=B,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=[*callbacks],
        **options,
    )


@pairwise(name=OPTIMIZERS, eagerly=[False, True])
def test_averages_equal_those_of_all_weights_in_every_step(name, eagerly):
    optimizer = with_average(getattr(optimizers, name))
    model, reference = model_of(optimizer, run_eagerly=eagerly), DenseAverage()
    fit(model, reference)
    assert len(reference.errors) == 2 * STEPS
    assert max(reference.errors) < TOLERANCE
    # At its end `fit` leaves the averages in the model, as Keras documents.
    assert distance(model.trainable_variables, reference.average) < TOLERANCE


@pytest.mark.one_tf
@pytest.mark.parametrize(
    "options", [{"clipnorm": 0.01}, {"weight_decay": 0.5}, {"global_clipnorm": 0.01}]
)
def test_gradients_that_something_modifies(options):
    reference = DenseAverage()
    fit(model_of(with_average(**options)), reference)
    assert max(reference.errors) < TOLERANCE


def test_the_update_stays_fused_and_averages_use_its_groups(executed):
    model = model_of(with_average())
    with executed() as ran:
        model.train_on_batch(*data(1))
    assert ran == {"fused": 1, "averages": 4}  # of the table, and of three dense variables


def test_the_path_does_not_change_a_bit():
    def state(model):
        return [v.tobytes() for v in (*model.get_weights(), *map(np.array, slots(model)))]

    def slots(model):
        return model.optimizer.slots_of(model.get_layer("table").kernel)

    fused, eager = model_of(with_average()), model_of(with_average(), run_eagerly=True)
    for model in (fused, eager):
        x, y = data(1)
        weights = model.get_layer("top").get_weights()
        model.train_on_batch(x, y)
        model.get_layer("top").set_weights(weights)  # TensorFlow's own ops may differ
    kernels = [m.get_layer("table").kernel for m in (fused, eager)]
    np.testing.assert_allclose(*[np.array(k) for k in kernels], atol=1e-6)
    gradient = tf.IndexedSlices(tf.ones([4, D]), tf.constant([1, 1, 7, 9], tf.int64), [N, D])
    results = []
    for graph in (False, True):
        optimizer, w = with_average(), tf.Variable(tf.ones([N, D]))
        optimizer.build([w])
        step = lambda o=optimizer, w=w: o.apply_gradients([(gradient, w)])  # noqa: E731
        for _ in range(4):
            (tf.function(step) if graph else step)()
        results.append([v.numpy().tobytes() for v in (w, *optimizer.slots_of(w))])
    assert results[0] == results[1]


def test_rows_without_a_gradient_cost_nothing():
    model = model_of(with_average())
    x, y = data(1)
    for _ in range(3):
        model.train_on_batch(x, y)
    average = model.optimizer.average_of(model.get_layer("table").kernel)
    np.testing.assert_array_equal(np.flatnonzero(average.steps.numpy()), np.unique(x[0]))


def trained_variable(optimizer, gradients, graph):
    """A variable after training, and after its average has replaced it."""
    w = tf.Variable(np.random.default_rng(7).normal(size=(N, D)).astype(np.float32))
    optimizer.build([w])

    def step(gradient):
        optimizer.apply_gradients([(gradient, w)])

    run = tf.function(step, reduce_retracing=True) if graph else step
    for gradient in gradients:
        run(gradient)
    trained = w.numpy()
    optimizer.finalize_variable_values([w])
    return trained, w.numpy()


def sparse_gradients(steps=9):
    rng = np.random.default_rng(1)
    for _ in range(steps):
        ids = rng.integers(0, N // 2, 9)
        rows = rng.normal(size=(9, D)).astype(np.float32)
        yield tf.IndexedSlices(tf.constant(rows), tf.constant(ids), tf.constant([N, D]))


@pairwise(
    graph=[False, True],
    frequency=[None, 1, 3],
    accumulated=[None, *([2] if KERAS_3 else [])],
)
def test_options_mean_what_they_mean_in_keras(graph, frequency, accumulated):
    options = {"use_ema": True, "ema_momentum": MOMENTUM, "ema_overwrite_frequency": frequency}
    if accumulated:
        options["gradient_accumulation_steps"] = accumulated
    dense = [tf.convert_to_tensor(g) for g in sparse_gradients()]
    want = trained_variable(stock.SGD(0.1, **options), dense, graph)
    for gradients in (sparse_gradients(), dense):
        got = trained_variable(optimizers.SGD(0.1, **options), gradients, graph)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (5,), (4, 2, 3)])
def test_dense_variables_of_any_rank(shape):
    w = tf.Variable(tf.ones(shape))
    optimizer = with_average(optimizers.SGD, 1.0)
    optimizer.build([w])
    want = None if KERAS_3 else np.ones(shape)
    for _ in range(4):
        optimizer.apply_gradients([(tf.ones(shape), w)])
        want = w.numpy() if want is None else MOMENTUM * want + (1 - MOMENTUM) * w.numpy()
    optimizer.finalize_variable_values([w])
    np.testing.assert_allclose(w.numpy(), want, atol=1e-6)


@pytest.mark.one_tf
@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_the_ends_of_the_momentum(momentum):
    model = model_of(optimizers.SGD(0.5, use_ema=True, ema_momentum=momentum))
    reference = DenseAverage(momentum)
    fit(model, reference, epochs=1)
    assert max(reference.errors) < TOLERANCE


@pytest.mark.parametrize("momentum", [-0.1, 1.1])
def test_a_momentum_out_of_range_is_refused(momentum):
    with pytest.raises(ValueError, match="ema_momentum"):
        optimizers.SGD(0.5, use_ema=True, ema_momentum=momentum)


def test_bfloat16_tables_have_float32_averages():
    model, reference = model_of(with_average(rate=0.3), "bfloat16"), DenseAverage()
    fit(model, reference)
    # In the model the averages are rounded to bfloat16.
    scale = max(np.abs(a).max() for a in reference.average)
    assert max(reference.errors) < scale * 2**-8
    average = model.optimizer.average_of(model.get_layer("table").kernel)
    assert average.values.dtype == tf.float32
    np.testing.assert_allclose(average.values.numpy(), reference.average[0], rtol=0, atol=TOLERANCE)


@pytest.mark.one_tf
def test_stock_ops(monkeypatch):
    with _library.library.override(_library.stock.library):
        reference = DenseAverage()
        fit(model_of(with_average()), reference)
    assert max(reference.errors) < TOLERANCE


@pytest.mark.one_tf
def test_hogwild_of_one_thread_has_the_same_bits():
    got, want = (model_of(with_average(concurrency=c)) for c in ("hogwild", "locked"))
    for model in (got, want):
        fit(model)
    assert [w.tobytes() for w in got.get_weights()] == [w.tobytes() for w in want.get_weights()]


def test_hogwild_averages_stay_between_the_weights():
    w = tf.Variable(tf.zeros([N, D]))
    optimizer = with_average(optimizers.SGD, 1.0, concurrency="hogwild")
    optimizer.build([w])
    ids = tf.constant(np.random.default_rng(0).integers(0, N // 2, 200), tf.int64)

    @tf.function
    def step():
        # The rows only fall, from 0 on.
        gradient = tf.IndexedSlices(tf.ones([200, D]), ids, [N, D])
        optimizer.apply_gradients([(gradient, w)])

    step()
    threads = [threading.Thread(target=lambda: [step() for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lowest = w.numpy()
    optimizer.finalize_variable_values([w])
    assert (w.numpy() <= 0).all()
    assert (w.numpy() >= lowest).all()
    assert (w.numpy()[: N // 2] < 0).all()


def test_parts_of_a_composite_optimizer_have_their_own_averages():
    parts = optimizers.CompositeOptimizer(
        tf.keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.5),
        {"table.*kernel": with_average(), "table.*bias": optimizers.SGD(0.1)},
    )
    model = model_of(parts)
    initial = [w.numpy() for w in model.trainable_variables]
    seen = []

    class Record(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([w.numpy() for w in self.model.trainable_variables])

    fit(model, Record())
    want = seen[0] if KERAS_3 else initial
    momenta = [MOMENTUM, 0.0, 0.5, 0.5]  # kernel and bias of the table and of the top
    for now in seen[1:] if KERAS_3 else seen:
        want = [m * a + (1 - m) * w for m, a, w in zip(momenta, want, now, strict=True)]
    assert distance(model.trainable_variables, want) < TOLERANCE
    np.testing.assert_array_equal(model.trainable_variables[1].numpy(), seen[-1][1])


def wrapped(wrap):
    """Averages for all weights, with a part of them within wrappers."""
    return optimizers.CompositeOptimizer(with_average(), {"table": wrap(with_average())})


@pytest.mark.one_tf
@pytest.mark.parametrize(
    "wrap",
    [
        optimizers.LossScaleOptimizer,
        tf.keras.mixed_precision.LossScaleOptimizer,
        lambda o: optimizers.CompositeOptimizer(optimizers.SGD(0.1), {"table": o}),
        lambda o: optimizers.CompositeOptimizer(
            optimizers.SGD(0.1), {"table": optimizers.LossScaleOptimizer(o)}
        ),
    ],
)
def test_parts_within_wrappers_have_their_averages(wrap):
    reference = DenseAverage()
    fit(model_of(wrapped(wrap)), reference)
    assert max(reference.errors) < TOLERANCE


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no loss scaling of this kind")
def test_loss_scaling():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    reference = DenseAverage()
    fit(model_of(optimizers.LossScaleOptimizer(with_average())), reference)
    assert max(reference.errors) < TOLERANCE


@pytest.mark.parametrize("where", on_both(["auto", "sharded"], "sharded"))
def test_replicas_have_the_averages_of_one(where):
    def trained(strategy):
        tf.keras.utils.set_random_seed(1)
        with strategy.scope():
            inputs = tf.keras.Input((WIDTH,), dtype="int64")
            start = tf.keras.initializers.RandomNormal(seed=1)
            table = layers.SparseLinear(D, N, placement=where, kernel_initializer=start)
            model = tf.keras.Model(inputs, table(inputs))
            optimizer = with_average(optimizers.Adagrad, ema_overwrite_frequency=3)
            model.compile(optimizer, "mse")
        x, y = data()
        batches = tf.data.Dataset.from_tensor_slices((x[0], np.repeat(y, D, 1)))
        model.fit(batches.batch(B, drop_remainder=True), verbose=0)
        read = placement.placement_of(table.kernel).read(table.kernel).numpy()
        return read, copies(strategy, table.kernel)

    one, _ = trained(tf.distribute.get_strategy()) if where == "auto" else (None, None)
    two, replicas = trained(distribute.mirrored_strategy(2))
    if where == "sharded":
        one, _ = trained(distribute.mirrored_strategy(1))
    else:
        np.testing.assert_array_equal(*replicas)
    np.testing.assert_allclose(two, one, rtol=0, atol=TOLERANCE)


@pytest.mark.one_tf
def test_a_row_with_a_new_id_begins_a_new_average():
    layer = layers.DynamicSparseLinear(1, 2, kernel_initializer="zeros", use_bias=False)
    optimizer = with_average(optimizers.SGD, 1.0)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True))
        variables = layer.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def ragged(*ids):
        return tf.RaggedTensor.from_row_lengths(tf.constant(ids, tf.int64), [len(ids)])

    for ids in ([11], [11], [11], [13], [13]):
        step(ragged(*ids))
    row = int(layer.lookup(ragged(13)).flat_values[0])
    assert row == int(layer.lookup(ragged(13, 11)).flat_values[0]) > 0
    average = optimizer.average_of(layer.linear.kernel)
    values, _ = average.current(optimizer.average_step(), MOMENTUM)
    # The row was 0 before the two updates of the new id.
    m = MOMENTUM
    want = m * (m * 0 + (1 - m) * -1) + (1 - m) * -2
    assert values.numpy()[row, 0] == pytest.approx(want, abs=TOLERANCE)


@pytest.mark.skipif(not _library.is_native(), reason="only the op library marks rows")
def test_changed_rows_have_their_averages_and_evaluation_changes_none():
    model = model_of(with_average())
    fit(model, epochs=1)
    kernel = model.get_layer("table").kernel
    follower = ops.ChangedRows([tf_variable(kernel), *model.optimizer.slots_of(kernel)])
    follower.take().keep()
    x, y = data(1)
    with optimizers.averaged_weights(model):
        model.evaluate(x, y, verbose=0)
    assert follower.take().ids.size == 0
    before = [v.numpy() for v in follower.variables]
    model.train_on_batch(x, y)
    taken = follower.take()
    np.testing.assert_array_equal(taken.ids, np.unique(x[0]))
    for copy, rows, variable in zip(before, taken.rows, follower.variables, strict=True):
        copy[taken.ids] = rows.numpy()
        assert copy.tobytes() == variable.numpy().tobytes()


def bits(model):
    slots = model.optimizer.variables
    slots = slots() if callable(slots) else slots
    return [np.array(v).tobytes() for v in (*model.trainable_variables, *slots)]


def test_the_training_is_as_before_after_a_look_at_the_averages():
    x, y = data()
    model = model_of(with_average())
    for _ in range(3):
        model.train_on_batch(x, y)
    before = bits(model)
    with optimizers.averaged_weights(model), optimizers.averaged_weights(model):
        assert bits(model) != before
    assert bits(model) == before
    with pytest.raises(ZeroDivisionError), optimizers.averaged_weights(model):
        raise ZeroDivisionError
    assert bits(model) == before
    with pytest.raises(RuntimeError, match="trained while"), optimizers.averaged_weights(model):
        model.train_on_batch(x, y)
    assert bits(model)[:4] == before[:4]


def test_models_without_averages_are_refused():
    model = model_of(optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="SGD keeps no averaged weights: make it with use_ema"):
        optimizers.averaged_weights(model).__enter__()
    x = tf.keras.Input([2])
    with pytest.raises(ValueError, match="must be compiled, or optimizer given"):
        optimizers.averaged_weights(tf.keras.Model(x, x)).__enter__()


def test_before_training_the_averages_are_the_weights():
    for model in (model_of(with_average()), model_of(with_average())):
        before = model.get_weights()
        with optimizers.averaged_weights(model):
            assert distance(model.get_weights(), before) == 0
        model.optimizer.build(model.trainable_variables)
        with optimizers.averaged_weights(model):
            assert distance(model.get_weights(), before) == 0
        model.optimizer.finalize_variable_values(model.trainable_variables)
        assert distance(model.get_weights(), before) == 0


@pytest.mark.parametrize("swap_on_epoch", on_both([False, True], True))
def test_validation_sees_the_averages_and_training_does_not_notice(swap_on_epoch):
    x, y = data()
    kept = []

    class Keep(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kept.append(self.model.get_weights())

    swapped, plain = model_of(with_average()), model_of(with_average())
    swap = optimizers.SwapEMAWeights(swap_on_epoch)
    history = fit(swapped, swap, Keep(), epochs=3, validation_data=(x, y)).history
    fit(plain, epochs=3)
    assert bits(swapped) == bits(plain)
    assert history["val_loss"][-1] == pytest.approx(plain.evaluate(x, y, verbose=0), abs=1e-6)
    assert (distance(kept[-1], plain.get_weights()) == 0) == swap_on_epoch


@pytest.mark.skipif(not KERAS_3, reason="a callback of Keras 3")
@pytest.mark.parametrize("swap_on_epoch", [False, True])
def test_the_callback_of_keras_works_with_a_single_optimizer(swap_on_epoch):
    x, y = data()
    histories = []
    for callback in (optimizers.SwapEMAWeights, tf.keras.callbacks.SwapEMAWeights):
        model = model_of(with_average())
        fitted = fit(model, callback(swap_on_epoch), epochs=3, validation_data=(x, y))
        histories.append((fitted.history["val_loss"], model.get_weights()))
    np.testing.assert_allclose(histories[0][0], histories[1][0], atol=1e-6)
    assert distance(histories[0][1], histories[1][1]) < 1e-6
    with pytest.raises(ValueError, match="use twml_ops.optimizers.SwapEMAWeights"):
        fit(
            model_of(with_average(), "bfloat16"),
            tf.keras.callbacks.SwapEMAWeights(),
            validation_data=(x, y),
        )


def test_a_file_has_the_weights_that_are_trained_and_their_averages(tmp_path):
    x, y = data()
    model = model_of(with_average())
    for _ in range(3):
        model.train_on_batch(x, y)
    model.save(tmp_path / "training.keras")
    again = tf.keras.models.load_model(tmp_path / "training.keras")
    assert bits(again) == bits(model)
    # In the block, a file has the averages, from which its training continues.
    with optimizers.averaged_weights(model):
        averaged = model.get_weights()
        model.save(tmp_path / "averaged.keras")
    again = tf.keras.models.load_model(tmp_path / "averaged.keras")
    assert distance(again.get_weights(), averaged) == 0
    with optimizers.averaged_weights(again):
        assert distance(again.get_weights(), averaged) == 0


def test_a_file_of_a_version_without_steps_of_averages():
    w = tf.Variable(tf.ones([N, D]))
    model = [with_average(optimizers.Momentum) for _ in range(2)]
    for optimizer in model:
        optimizer.build([w])
    for _ in range(3):
        model[0].apply_gradients([(tf.ones([N, D]), w)])
    model[0].finalize_variable_values([w])
    store = {}
    model[0].save_own_variables(store)
    last = str(max(int(key) for key in store if key.isdigit()))
    assert store[last].dtype == np.int64
    del store[last]
    model[1].load_own_variables(store)
    for got, want in zip(*(o.slots_of(w) for o in reversed(model)), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_exports_have_the_averages_in_the_block(tmp_path):
    x, y = data()
    model = model_of(with_average())
    model.train_on_batch(x, y)
    model.train_on_batch(x, y)
    with optimizers.averaged_weights(model):
        want = model.predict(x, verbose=0)
        export.to_scorer(model, tmp_path / "scorer")
        export.to_tf(model, tmp_path / "saved")
    assert np.abs(model.predict(x, verbose=0) - want).max() > 1e-4
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    assert served is not None
