"""Our layers, optimizers and metrics in every form of Keras model and every way to fit one."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.pairwise import on_both
from twml_ops import layers, metrics, optimizers

pytestmark = pytest.mark.usefixtures("fresh_keras")

N, WIDTH, ROWS, BATCH = 30, 4, 48, 8


def data():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, N, (ROWS, WIDTH))
    ids[rng.random(ids.shape) < 0.2] = -1
    labels = (ids < N // 3).any(axis=1).astype(np.float32)[:, None]
    return ids, labels


def stack():
    """The same layers with equal initial weights for every form."""
    constant = tf.keras.initializers.Constant
    rng = np.random.default_rng(2)
    return [
        layers.SparseLinear(
            5,
            N,
            activation="relu",
            kernel_initializer=constant(rng.normal(size=(N, 5)).astype(np.float32)),
        ),
        tf.keras.layers.Dense(
            1,
            activation="sigmoid",
            dtype="float32",
            kernel_initializer=constant(rng.normal(size=(5, 1)).astype(np.float32)),
        ),
    ]


def functional():
    inputs = x = tf.keras.Input((WIDTH,), dtype="int64")
    for layer in stack():
        x = layer(x)
    return tf.keras.Model(inputs, x)


def sequential():
    return tf.keras.Sequential([tf.keras.Input((WIDTH,), dtype="int64"), *stack()])


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = stack()

    def call(self, inputs):
        return self.second(self.first(inputs))


FORMS = {"functional": functional, "sequential": sequential, "subclassed": Subclassed}


def fit(form, compile_with=None, **arguments):
    """(losses of the epochs, weights) of a model fitted without shuffling."""
    model = FORMS[form]()
    model.compile(
        optimizers.Adagrad(0.1),
        "binary_crossentropy",
        weighted_metrics=[metrics.NormalizedEntropy()],
        **(compile_with or {}),
    )
    history = model.fit(
        *data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0, **arguments
    ).history
    return model, history


def assert_same_weights(one, other, **tolerance):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_model_trains_to_the_same_weights(form):
    model, history = fit(form)
    assert history["loss"][-1] < history["loss"][0]
    assert np.isfinite(history["normalized_entropy"]).all()
    assert_same_weights(model, fit("functional")[0])


@pytest.mark.parametrize("form", on_both(FORMS, "functional"))
def test_class_weights_are_the_sample_weights_of_the_classes(form):
    _, labels = data()
    by_class, _ = fit(form, class_weight={0: 0.5, 1: 3.0})
    by_sample, _ = fit(form, sample_weight=np.where(labels[:, 0] > 0, 3.0, 0.5))
    assert_same_weights(by_class, by_sample)
    plain, _ = fit(form)
    assert np.abs(plain.get_weights()[0] - by_class.get_weights()[0]).max() > 1e-3


def test_an_example_of_weight_0_has_no_effect():
    ids, labels = data()
    weights = (np.arange(ROWS) % 2).astype(np.float32)
    once, _ = fit("functional", sample_weight=weights)
    labels[::2] = 1 - labels[::2]
    model = functional()
    model.compile(optimizers.Adagrad(0.1), "binary_crossentropy")
    model.fit(ids, labels, BATCH, 2, 0, shuffle=False, sample_weight=weights)
    assert_same_weights(once, model)


@pytest.mark.parametrize("options", [{"steps_per_execution": 3}, {"run_eagerly": True}])
def test_the_result_does_not_depend_on_how_steps_are_run(options):
    assert_same_weights(fit("functional", options)[0], fit("functional")[0])


@pytest.mark.parametrize("form", FORMS)
def test_callbacks_checkpoint_stop_and_schedule(form, tmp_path):
    path = str(tmp_path / "best.weights.h5")
    callbacks = [
        tf.keras.callbacks.ModelCheckpoint(
            path, monitor="loss", save_best_only=True, save_weights_only=True
        ),
        tf.keras.callbacks.EarlyStopping(monitor="loss", min_delta=10.0, patience=1),
        tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1)),
        tf.keras.callbacks.TerminateOnNaN(),
    ]
    model, history = fit(form, callbacks=callbacks)
    assert float(tf.convert_to_tensor(model.optimizer.learning_rate)) == pytest.approx(0.05)
    assert len(history["loss"]) == 2
    again = FORMS[form]()
    again(data()[0][:1])
    again.load_weights(path)
    assert_same_weights(again, model)


def test_mixed_precision_keeps_the_table_in_float32_and_nearly_the_result():
    plain, _ = fit("functional")
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    mixed, _ = fit("functional")
    assert {str(w.dtype) for w in mixed.get_weights()} == {"float32"}
    assert_same_weights(mixed, plain, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("form", ["functional", "sequential"])
def test_a_clone_has_the_layers_and_its_own_weights(form):
    model, _ = fit(form)
    clone = tf.keras.models.clone_model(model)
    ids, _ = data()
    assert np.abs(model(ids).numpy() - clone(ids).numpy()).max() > 0
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(ids), model(ids), rtol=1e-6)


def learned():
    """A model of every layer whose state is not among its weights, and a batch for it."""
    ids, labels = data()
    values = np.random.default_rng(4).normal(size=ids.shape).astype(np.float32)
    buckets = layers.PercentileDiscretizer(4, keep_sketch=True)
    hashed = layers.HashingDiscretizer(6, num_bins=3)
    for layer in (buckets, hashed):
        layer.adapt((ids, values))
    inputs = [tf.keras.Input((WIDTH,), dtype=t) for t in ("int64", "float32")]
    parts = [layers.SparseLinear(1, layer.output_dim)(layer(inputs)) for layer in (buckets, hashed)]
    score = tf.keras.layers.Activation("sigmoid")(tf.keras.layers.Add()(parts))
    calibration = layers.IsotonicCalibration()
    calibration.adapt(np.random.default_rng(5).random((ROWS, 1)), labels)
    return tf.keras.Model(inputs, calibration(score)), [ids, values]


def test_a_clone_is_adapted_and_calibrated_as_its_model_is():
    model, batch = learned()
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone(batch), model(batch), rtol=1e-6)
    # Each has a state of its own.
    want = clone(batch).numpy()
    for layer in model.layers:
        for variable in getattr(layer, "state_variables", ()):
            variable.assign(variable[:0])
    np.testing.assert_allclose(clone(batch), want, rtol=1e-6)


def test_the_config_of_a_model_is_plain_json_and_pickles_plainly():
    model, _ = learned()
    again = tf.keras.models.model_from_json(model.to_json())
    assert [la.get_config() for la in again.layers] == [la.get_config() for la in model.layers]
    unloaded = [la for la in again.layers if hasattr(la, "state_variables")]
    assert len(unloaded) == 3
    assert not any(getattr(la, "adapted", False) or getattr(la, "fitted", False) for la in unloaded)
    config = next(la for la in model.layers if hasattr(la, "adapted")).get_config()
    assert type(copy.deepcopy(config)["adapted_output_dim"]) is type(config["adapted_output_dim"])
    assert type(pickle.loads(pickle.dumps(config))["adapted_output_dim"]) is int


def test_jit_compile_auto_trains_without_messages(capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, history = fit("functional", {"jit_compile": "auto"} if keras_3() else {})
    assert history["loss"][-1] < history["loss"][0]
    said = [str(w.message) for w in caught] + [capfd.readouterr().err]
    assert not [s for s in said if "jit" in s.lower() or "xla" in s.lower()]
    assert_same_weights(model, fit("functional")[0])


def keras_3():
    return getattr(tf.keras, "__version__", "2").startswith("3.")


@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_a_clone_takes_the_batches_of_its_model(form):
    arguments = {"ragged": True} if form == "ragged" else {"sparse": True}
    dtype, width = ("int64", None) if form == "ragged" else ("float32", N)
    inputs = tf.keras.Input((width,), dtype=dtype, **arguments)
    model = tf.keras.Model(inputs, layers.SparseLinear(2, N)(layers.MaxNorm(N)(inputs)))
    batch = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
    if form == "sparse":
        batch = tf.SparseTensor([[0, 1], [0, 2]], [1.0, 2.0], [2, N])
    for clone in (layers.clone_model(model), type(model).from_config(model.get_config())):
        assert np.abs(np.asarray(clone(batch)) - np.asarray(model(batch))).max() > 0
        clone.set_weights(model.get_weights())
        np.testing.assert_array_equal(clone(batch), model(batch))
